"""The sliding window against a loop over pixels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domains.segmentation import sliding
from domains.segmentation.model import upsample
from domains.segmentation.sliding import predict, score_picture, window_offsets

from .networks import network

WINDOW = 32


def naive(net: Any, image: Tensor, stride: int, size: tuple[int, int]) -> Tensor:
    """Every pixel's mean over the windows that hold it, found pixel by pixel."""
    height, width = image.shape[2:]
    places = {}
    for side in (height, width):
        starts = [start for start in range(0, side, stride) if start < side - WINDOW]
        places[side] = [*starts, side - WINDOW]
    windows = {
        (y, x): upsample(
            net(image[:, :, y : y + WINDOW, x : x + WINDOW]), net.patch, (WINDOW, WINDOW)
        )[0]
        for y in places[height]
        for x in places[width]
    }
    pixels = []
    for row in range(height):
        for column in range(width):
            seen = [
                scores[:, row - y, column - x]
                for (y, x), scores in windows.items()
                if y <= row < y + WINDOW and x <= column < x + WINDOW
            ]
            pixels.append(torch.stack(seen).mean(0))
    merged = torch.stack(pixels, dim=1).view(1, -1, height, width)
    return F.interpolate(merged, size=size, mode="bilinear", align_corners=False)[0]


@pytest.mark.parametrize("stride", [WINDOW, WINDOW - 8, 13])
@pytest.mark.parametrize("sides", [(32, 32), (33, 47), (71, 32)])
@torch.no_grad()
def test_odd_sizes_are_merged_as_in_a_loop(sides: tuple[int, int], stride: int) -> None:
    net = network()
    image, size = torch.randn(1, 3, *sides), (sides[0] + 5, sides[1] - 3)
    found = score_picture(net, image, window=WINDOW, stride=stride, size=size)
    torch.testing.assert_close(found, naive(net, image, stride, size), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("stride", [7, 25, 32])
def test_windows_cover_a_side_and_end_with_it(stride: int) -> None:
    for side in range(WINDOW, 200):
        starts = window_offsets(side, WINDOW, stride)
        assert starts[0] == 0
        assert starts[-1] == side - WINDOW
        steps = [b - a for a, b in pairwise(starts)]
        assert all(0 < step <= stride for step in steps)


@torch.no_grad()
def test_a_picture_smaller_than_the_window_is_enlarged() -> None:
    """Its shorter side becomes the window's, the longer one is cut to whole pixels."""
    net = network()
    image = torch.randn(1, 3, 19, 30)
    larger = F.interpolate(image, size=(32, 50), mode="bilinear", align_corners=False)
    options: dict[str, Any] = {"window": WINDOW, "stride": 24, "size": (19, 30)}
    torch.testing.assert_close(
        score_picture(net, image, **options), score_picture(net, larger, **options)
    )
    tall = score_picture(net, image.transpose(2, 3), window=WINDOW, stride=24, size=(30, 19))
    assert tall.shape == (5, 30, 19)


@torch.no_grad()
def test_how_many_windows_go_together_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, image = network(), torch.randn(1, 3, 50, 90)
    options: dict[str, Any] = {"window": WINDOW, "stride": 16, "size": (50, 90)}
    together = score_picture(net, image, **options)
    monkeypatch.setattr(sliding, "WINDOWS_AT_ONCE", 1)
    torch.testing.assert_close(score_picture(net, image, **options), together)


class Bright(nn.Module):
    """Sees class 1 in patches that are brighter than 0, class 0 in the others."""

    patch = 8

    def forward(self, images: Tensor) -> Tensor:
        brightness = F.avg_pool2d(images.mean(1, keepdim=True), self.patch)
        return torch.cat([-brightness, brightness], dim=1)


def test_what_was_seen_in_a_mirrored_picture_is_mirrored_back() -> None:
    net: Any = Bright()
    image = torch.linspace(-1.0, 1.0, 64).expand(1, 3, WINDOW, 64)
    options: dict[str, Any] = {"window": WINDOW, "stride": 16, "size": (WINDOW, 64)}
    plain = predict(net, [image], mirrored=False, **options)
    assert plain[:, :32].eq(0).all()
    assert plain[:, 32:].eq(1).all()
    assert torch.equal(predict(net, [image], mirrored=True, **options), plain)


@torch.no_grad()
def test_probabilities_of_all_scales_and_mirror_images_are_averaged() -> None:
    net = network()
    images = [torch.randn(1, 3, 32, 40), torch.randn(1, 3, 48, 60)]
    options: dict[str, Any] = {"window": WINDOW, "stride": 24, "size": (30, 37)}
    maps = []
    for image in images:
        maps.append(score_picture(net, image, **options).softmax(0))
        maps.append(score_picture(net, image.flip(3), **options).flip(2).softmax(0))
    expected = torch.stack(maps).mean(0).argmax(0)
    assert torch.equal(predict(net, images, mirrored=True, **options), expected)
