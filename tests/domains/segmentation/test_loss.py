"""The loss in strips against PyTorch's, on whole scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domains.segmentation import loss as losses
from domains.segmentation.loss import bilinear_weights, pixel_cross_entropy
from domains.segmentation.model import upsample

from .networks import masks

SHAPES = [
    # pictures, classes, rows and columns of patches, patch, height and width in pixels
    (2, 5, 4, 3, 16, 64, 48),
    (2, 7, 3, 4, 16, 47, 60),
    (1, 3, 1, 5, 8, 8, 33),
    (3, 2, 6, 1, 4, 24, 4),
]


def naive(scores: Tensor, labels: Tensor, patch: int) -> Tensor:
    full = upsample(scores, patch, (labels.shape[1], labels.shape[2]))
    return F.cross_entropy(full, labels, ignore_index=255)


@pytest.mark.parametrize("entries", [1, 700, 2**20])
@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradient_are_those_of_upsampled_scores(
    shape: tuple[int, ...], entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows are held at a time."""
    monkeypatch.setitem(losses.ENTRIES, "cpu", entries)
    batch, classes, rows, columns, patch, height, width = shape
    scores = torch.randn(batch, classes, rows, columns, dtype=torch.float32, requires_grad=True)
    labels = masks(batch, height, width, classes=classes)
    found, expected = pixel_cross_entropy(scores, labels, patch), naive(scores, labels, patch)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0.0)
    (ours,) = torch.autograd.grad(3.0 * found, scores)
    (theirs,) = torch.autograd.grad(3.0 * expected, scores)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_pixels_without_a_label_change_nothing() -> None:
    scores = torch.randn(1, 4, 2, 2)
    labels = torch.randint(4, (1, 16, 16))
    labels[:, 4:] = 255
    upper = upsample(scores, 8, (16, 16))[:, :, :4]
    expected = F.cross_entropy(upper, labels[:, :4])
    torch.testing.assert_close(pixel_cross_entropy(scores, labels, 8), expected)


def test_nothing_labelled_is_no_loss_and_no_gradient() -> None:
    scores = torch.randn(1, 4, 2, 2, requires_grad=True)
    loss = pixel_cross_entropy(scores, torch.full((1, 16, 16), 255), 8)
    loss.backward()
    assert loss.item() == 0.0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_bfloat16_scores_are_summed_in_float32() -> None:
    scores, labels = torch.randn(2, 5, 4, 4).bfloat16(), masks(2, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pixel_cross_entropy(scores, labels, 8)
    torch.testing.assert_close(found, naive(scores.float(), labels, 8), atol=1e-6, rtol=0.0)


def test_the_weights_are_those_of_pytorch() -> None:
    weights = bilinear_weights(3, 4, torch.zeros(()))
    units = torch.eye(3)[:, None]
    full = F.interpolate(units, scale_factor=4, mode="linear", align_corners=False)[:, 0].T
    torch.testing.assert_close(weights, full)
