"""Pictures of what a trained model made of a few inputs: `examples.json` and PNG files of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.files import write_atomic
from benchmarks.store import Run
from domains.base import BenchmarkData, BenchmarkModule, Domain
from domains.contract import Example

SCHEMA = 1


def draw_examples(
    run: Run, domain: Domain, cfg: Any, module: BenchmarkModule, data: BenchmarkData
) -> None:
    """Let a domain draw its examples, and store them.

    Args:
        run: where the files go; nothing is written for a domain that draws none.
        domain: draws.
        cfg: the run's configuration.
        module: holds the trained weights; is in single precision afterwards.
        data: what it was trained on.

    Raises:
        ValueError: a picture is not (H, W, 3) uint8.
        StoreWriteError: the store cannot be written.
    """
    module.eval().float()  # as data come; a trainer would convert them to its own precision
    with torch.no_grad():
        examples = domain.examples(cfg, module, data)
    if examples:
        run.write_json("examples.json", {"schema": SCHEMA, "examples": _store(run, examples)})


def _store(run: Run, examples: Sequence[Example]) -> list[dict[str, Any]]:
    (run.path / "examples").mkdir(exist_ok=True)
    records = []
    for number, example in enumerate(examples):
        files = {}
        for label, picture in {**example.given, "prediction": example.prediction}.items():
            files[label] = f"examples/{number}_{label}.png"
            write_atomic(run.path / files[label], _png(picture, f"{example.name}, {label}"))
        prediction = files.pop("prediction")
        records.append({"name": example.name, "given": files, "prediction": prediction})
    return records


def _png(picture: np.ndarray, what: str) -> bytes:
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        found = f"{picture.shape} {picture.dtype}"
        raise ValueError(f"example {what}: a picture is (H, W, 3) uint8, not {found}")
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="png", optimize=True)
    return buffer.getvalue()
