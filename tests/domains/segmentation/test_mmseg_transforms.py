"""The training steps against mmsegmentation's, given the same random draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from domains.segmentation import transforms
from domains.segmentation.colour import Photometric, distort
from domains.segmentation.config import SegmentationRecipe
from domains.segmentation.transforms import Draws

pytest.importorskip("mmseg", reason="the extra 'mmseg' is not installed")

from mmcv.transforms import Normalize, Pad, RandomFlip, Resize
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop

CROP = 128
RECIPE = SegmentationRecipe(
    name="small", max_epochs=1, batch_size=1, crop=CROP, long_side=640, short_side=160
)


def picture() -> tuple[np.ndarray, np.ndarray]:
    """A smooth picture with grain, and regions of nine classes."""
    generator = np.random.default_rng(5)
    coarse = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((267, 200), Image.Resampling.BICUBIC)
    grain = generator.normal(0, 4, (200, 267, 3))
    image = np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)
    regions = Image.fromarray(generator.integers(0, 9, (5, 7), dtype=np.uint8))
    return image, np.asarray(regions.resize((267, 200), Image.Resampling.NEAREST))


def of_mmseg(image: np.ndarray, labels: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """What mmsegmentation's pipeline makes of a picture."""
    frame = int(RECIPE.long_side * draws.factor), int(RECIPE.short_side * draws.factor)
    found: dict[str, Any] = {
        "img": image[..., ::-1].copy(),
        "img_shape": image.shape[:2],
        "gt_seg_map": labels,
        "seg_fields": ["gt_seg_map"],
    }
    found = Resize(scale=frame, keep_ratio=True).transform(found)
    shares: Iterator[float] = (share for corner in draws.corners for share in corner)
    with mock.patch("numpy.random.randint", lambda low, high: int(next(shares) * high)):
        found = RandomCrop((CROP, CROP), cat_max_ratio=RECIPE.max_class_share).transform(found)
    found = RandomFlip(prob=1.0 if draws.mirrored else 0.0).transform(found)
    if draws.photometric is not None:
        found = distorted(found, draws.photometric)
    mean, deviation = transforms.STATISTICS["imagenet"]
    found = Normalize(mean, deviation, to_rgb=True).transform(found)
    found = Pad(size=(CROP, CROP), pad_val={"img": 0, "seg": 255}).transform(found)
    return found["img"].transpose(2, 0, 1), found["gt_seg_map"]


def distorted(found: dict[str, Any], draws: Photometric) -> dict[str, Any]:
    """The distortion with its numbers given, in the order in which it asks for them."""
    contrast = [draws.contrast is not None], [draws.contrast]
    colours = [draws.saturation is not None, draws.hue is not None], [draws.saturation, draws.hue]
    order = (colours, contrast) if draws.contrast_last else (contrast, colours)
    coins = [draws.brightness is not None, not draws.contrast_last, *order[0][0], *order[1][0]]
    numbers = [draws.brightness, *order[0][1], *order[1][1]]
    tossed = iter(coins)
    given = iter([number for number in numbers if number is not None])

    def randint(low: int, high: int | None = None) -> Any:
        return int(next(tossed)) if high is None else next(given)

    def uniform(low: float, high: float) -> Any:
        return next(given)

    with (
        mock.patch("numpy.random.randint", randint),
        mock.patch("numpy.random.uniform", uniform),
    ):
        return PhotoMetricDistortion().transform(found)


@pytest.mark.parametrize("seed", range(40))
def test_a_training_crop_is_mmsegmentations(seed):
    image, labels = picture()
    draws = Draws.of(np.random.default_rng(seed), RECIPE)
    expected, expected_mask = of_mmseg(image, labels, draws)
    found, mask = transforms.training_crop(image, labels, RECIPE, CROP, draws)
    assert (mask == expected_mask).all()
    levels = np.abs(found - expected) * np.array([58.4, 57.12, 57.38])[:, None, None]
    assert levels.mean() <= 0.5
    # Resized pixels differ by at most one level. That can move a hue by one of its steps, which
    # is 255 / 30 levels of a channel in a picture of full saturation.
    assert np.quantile(levels, 0.99) <= 8.5


@pytest.mark.parametrize("seed", range(10))
def test_without_distortion_only_resizing_differs(seed):
    image, labels = picture()
    recipe = replace(RECIPE, photometric=False)
    draws = Draws.of(np.random.default_rng(seed), recipe)
    expected, _ = of_mmseg(image, labels, draws)
    found, _ = transforms.training_crop(image, labels, recipe, CROP, draws)
    levels = np.abs(found - expected) * np.array([58.4, 57.12, 57.38])[:, None, None]
    assert levels.max() <= 1 + 1e-3


@pytest.mark.parametrize(
    ("steps", "levels"),
    [
        ({"brightness": 17.3}, 0),
        ({"contrast": 1.37}, 0),
        ({"contrast": 0.61, "contrast_last": True}, 0),
        ({"saturation": 1.4}, 1),
        ({"hue": -18}, 1),
        ({"hue": 17, "contrast": 1.2}, 1),
        ({"saturation": 0.6, "hue": 5}, 4),
    ],
)
def test_each_step_of_the_distortion(steps, levels):
    image, _ = picture()
    draws = Photometric(**steps)
    expected = distorted({"img": image[..., ::-1].copy()}, draws)["img"][..., ::-1]
    assert np.abs(distort(image, draws).astype(int) - expected).max() <= levels
