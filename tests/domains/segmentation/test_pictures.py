"""Predictions drawn over pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from domains.segmentation.batch import EvaluationPicture
from domains.segmentation.pictures import denormalised, draw_examples, palette
from domains.segmentation.transforms import normalised


class Left:
    """Finds class 0 left and class 1 right."""

    stride, mirrored = 32, False

    def predict(self, picture: EvaluationPicture, **options: Any) -> torch.Tensor:
        height, width = picture.masks.shape[1:]
        return (torch.arange(width) >= width // 2).long().expand(height, width)


def grey(height: int, width: int, name: str = "grey") -> EvaluationPicture:
    pixels = np.full((24, 32, 3), 100, np.uint8)
    image = torch.from_numpy(normalised(pixels, "imagenet"))[None]
    mask = torch.zeros(1, height, width, dtype=torch.int64)
    mask[:, : height // 2] = 255
    return EvaluationPicture([image], mask, name, "test")


def test_truth_and_prediction_lie_over_the_picture() -> None:
    module: Any = Left()
    (example,) = draw_examples(module, [grey(60, 80)], "imagenet")
    assert example.name == "grey"
    assert list(example.given) == ["input", "truth"]
    pictures = [*example.given.values(), example.prediction]
    assert all(p.dtype == np.uint8 and p.shape == (60, 80, 3) for p in pictures)
    base = np.full(3, 100)
    first, second = (0.4 * base + 0.6 * np.array(c) for c in palette(2).tolist())
    assert (example.given["input"] == 100).all()
    truth = example.given["truth"]
    assert (truth[:29] == 100).all(), "what has no label stays bare"
    np.testing.assert_allclose(truth[31:], np.broadcast_to(first, truth[31:].shape), atol=0.51)
    np.testing.assert_allclose(example.prediction[5, 5], first, atol=0.51)
    np.testing.assert_allclose(example.prediction[5, 75], second, atol=0.51)


def test_a_wide_picture_is_drawn_smaller_and_three_are_enough() -> None:
    module: Any = Left()
    pictures = [grey(300, 800, str(number)) for number in range(5)]
    examples = draw_examples(module, pictures, "imagenet")
    assert [example.name for example in examples] == ["0", "1", "2"]
    assert examples[0].prediction.shape == (150, 400, 3)


def test_normalisation_is_undone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for statistics in ("imagenet", "half"):
        seen = torch.from_numpy(normalised(pixels, statistics))
        found = denormalised(seen, statistics).permute(1, 2, 0).numpy()
        np.testing.assert_allclose(found, pixels, atol=1e-3)


def test_colours_of_classes_differ() -> None:
    colours = palette(150)
    assert len(colours.unique(dim=0)) == 150
    assert colours[0].tolist() == [128.0, 0.0, 0.0]
