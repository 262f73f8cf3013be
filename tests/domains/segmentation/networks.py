"""Small networks and pictures for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import AttentionFactory
from domains.segmentation.config import ModelConfig
from domains.segmentation.model import Segmenter

VECTORS = Path(__file__).parents[2] / "vectors"


def config(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "layers": 2,
        "width": 24,
        "heads": 3,
        "feedforward": 96,
        "patch": 8,
        "drop_path": 0.0,
        "decoder_dropout": 0.0,
    }
    return ModelConfig(**{**sizes, **changes})


def network(
    model: ModelConfig | None = None,
    variant: str = "standard",
    *,
    classes: int = 5,
    crop: int = 32,
) -> Segmenter:
    torch.manual_seed(0)
    factory = AttentionFactory(variant)
    return Segmenter(model or config(), factory, classes=classes, crop=crop).eval()


def stored() -> dict[str, Tensor]:
    """What rstrudel/segmenter gives, see `tests/vectors/README.md`."""
    with np.load(VECTORS / "segmenter.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def masks(*shape: int, classes: int = 5, ignored: float = 0.2) -> Tensor:
    drawn = torch.randint(classes, shape)
    drawn[torch.rand(shape) < ignored] = 255
    return drawn
