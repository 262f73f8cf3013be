"""Equality with rstrudel/segmenter, on stored numbers (`tests/vectors/README.md`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attention import AttentionFactory
from domains.common.schedules import schedule_factor
from domains.common.vit import resize_positions
from domains.contract import ScheduleConfig
from domains.segmentation.loss import pixel_cross_entropy
from domains.segmentation.model import Segmenter, upsample
from domains.segmentation.sliding import window_offsets

from .networks import config, stored

TOLERANCE = 3e-5


@pytest.fixture(scope="module")
def theirs() -> dict[str, Tensor]:
    return stored()


@pytest.fixture
def net(theirs: dict[str, Tensor]) -> Segmenter:
    model = config(patch=16, norm_eps=1e-5)
    made = Segmenter(model, AttentionFactory("standard"), classes=5, crop=64).eval()
    weights = {k.removeprefix("param."): v for k, v in theirs.items() if k.startswith("param.")}
    made.load_state_dict(weights)  # strict: the names are the same, and none is left over
    return made


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0.0)


def test_the_encoder_gives_the_reference_features(
    net: Segmenter, theirs: dict[str, Tensor]
) -> None:
    assert_close(net.encoder(theirs["image"]), theirs["encoder_features"], TOLERANCE)


def test_scores_of_patches_and_pixels_are_the_reference_ones(
    net: Segmenter, theirs: dict[str, Tensor]
) -> None:
    scores = net(theirs["image"])
    assert_close(scores, theirs["masks_low_resolution"], TOLERANCE)
    assert_close(upsample(scores, 16, (64, 64)), theirs["logits"], TOLERANCE)


def test_an_odd_picture_is_filled_up_and_cut_back(
    net: Segmenter, theirs: dict[str, Tensor]
) -> None:
    """Its positions are resized on the fly."""
    found = upsample(net(theirs["odd_image"]), 16, (50, 40))
    assert_close(found, theirs["odd_logits"], TOLERANCE)


def test_loss_and_gradients_are_the_reference_ones(
    net: Segmenter, theirs: dict[str, Tensor]
) -> None:
    loss = pixel_cross_entropy(net(theirs["image"]), theirs["labels"], 16)
    loss.backward()
    assert_close(loss.detach(), theirs["loss"], 1e-6)
    names = [key for key in theirs if key.startswith("grad.")]
    assert names
    for name in names:
        gradient = net.get_parameter(name.removeprefix("grad.")).grad
        assert gradient is not None, name
        assert_close(gradient, theirs[name], 2e-6)


def test_positions_are_resized_as_the_reference_does(theirs: dict[str, Tensor]) -> None:
    given = theirs["resize_pos_embed_input"]
    found = resize_positions(given, (7, 7), (4, 6), 1, "bilinear")
    assert_close(found, theirs["resize_pos_embed_output"], 5e-6)
    assert not torch.allclose(resize_positions(given, (7, 7), (4, 6), 1, "bicubic"), found)


@pytest.mark.parametrize("side", [512, 700, 1023])
@pytest.mark.parametrize("stride", [512, 480])
def test_windows_begin_where_the_reference_puts_them(
    theirs: dict[str, Tensor], side: int, stride: int
) -> None:
    expected = theirs[f"window_offsets_side{side}_stride{stride}"].tolist()
    assert window_offsets(side, 512, stride) == expected


def test_learning_rates_are_the_reference_ones(theirs: dict[str, Tensor]) -> None:
    schedule = ScheduleConfig(name="polynomial", final=0.01)
    total = int(theirs["lr_iter_max"])
    found = [1e-3 * schedule_factor(schedule, int(t), total) for t in theirs["lr_iterations"]]
    assert found == pytest.approx(theirs["lr_values"].tolist(), abs=1e-12)
    assert 1e-3 * schedule_factor(schedule, total, total) == pytest.approx(1e-5, abs=1e-15)


def test_the_loss_is_that_of_upsampled_scores(theirs: dict[str, Tensor]) -> None:
    loss = F.cross_entropy(theirs["logits"], theirs["labels"], ignore_index=255)
    assert_close(loss, theirs["loss"], 1e-6)
