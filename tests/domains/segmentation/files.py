"""Files of pictures and masks, and configurations that read them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from PIL import Image

from domains.segmentation.config import DatasetConfig, ModelConfig, SegmentationRecipe

CONF = Path(__file__).parents[3] / "conf" / "dataset" / "segmentation"


def dataset(name: str, /, **options: Any) -> DatasetConfig:
    """A data set as its YAML describes it, with changes."""
    return DatasetConfig(**{**yaml.safe_load((CONF / f"{name}.yaml").read_text()), **options})


def configuration(dataset: DatasetConfig, seed: int = 0, **options: Any) -> SimpleNamespace:
    """What the data reads of a run: small crops, other recipe settings as given."""
    settings: dict[str, Any] = {
        "name": "small",
        "max_epochs": 2,
        "batch_size": 3,
        "steps_per_epoch": 4,
        "crop": 32,
        "short_side": 32,
        "long_side": 128,
        **options,
    }
    return SimpleNamespace(
        dataset=dataset,
        recipe=SegmentationRecipe(**settings),
        model=ModelConfig(),
        protocol="slide",
        seed=seed,
    )


def save(values: np.ndarray, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def write_set(folder: Path, train: int = 5, val: int = 2, classes: int = 3) -> Path:
    """Pictures of several sizes with index masks, in the folders of the template."""
    generator = np.random.default_rng(0)
    for split, count in (("training", train), ("validation", val)):
        for number in range(count):
            size = 40 + 3 * number, 56 - 4 * number
            image = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
            save(image, folder / "images" / split / f"{split}{number}.png")
            mask = generator.integers(0, classes, size, dtype=np.uint8)
            save(mask, folder / "annotations" / split / f"{split}{number}.png")
    return folder
