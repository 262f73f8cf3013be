"""Augmentation: each step by itself, and that draws depend on the generator alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from domains.pointcloud.config import AugmentConfig
from domains.pointcloud.transforms import VIEWS, augment, view

NOTHING: dict[str, Any] = {"rotate": 0.0, "scale": [1.0, 1.0], "flip": 0.0, "jitter": 0.0}
POINTS = torch.tensor([[10.0, 0.0, 1.0], [0.0, 5.0, -2.0], [3.0, -4.0, 0.5]])


def changed(seed: int, coord: torch.Tensor = POINTS, **options: Any) -> torch.Tensor:
    config = AugmentConfig(**{**NOTHING, **options})
    return augment(coord, config, torch.Generator().manual_seed(seed))


def test_without_any_step_nothing_changes():
    assert torch.equal(changed(0), POINTS)


def test_rotations_are_about_z_by_any_angle():
    angles = []
    for seed in range(400):
        turned = changed(seed, rotate=1.0)
        torch.testing.assert_close(turned.norm(dim=1), POINTS.norm(dim=1))
        assert torch.equal(turned[:, 2], POINTS[:, 2])
        # Counter-clockwise and rigid: the second point stays a quarter turn ahead of the first.
        first, second = (torch.atan2(turned[i, 1], turned[i, 0]).item() for i in (0, 1))
        assert math.remainder(second - first - math.pi / 2, 2 * math.pi) == pytest.approx(
            0, abs=1e-5
        )
        angles.append(first)
    counts = torch.histc(torch.tensor(angles), bins=4, min=-math.pi, max=math.pi)
    assert counts.tolist() == pytest.approx([100] * 4, abs=35)


def test_half_of_all_scenes_are_turned():
    turned = sum(not torch.equal(changed(seed, rotate=0.5), POINTS) for seed in range(400))
    assert turned == pytest.approx(200, abs=40)


def test_scales_are_isotropic_and_in_range():
    factors = []
    for seed in range(200):
        ratio = changed(seed, scale=[0.9, 1.1]).norm(dim=1) / POINTS.norm(dim=1)
        torch.testing.assert_close(ratio, ratio[:1].expand(3))
        factors.append(ratio[0].item())
    assert 0.9 <= min(factors) < 0.91
    assert 1.09 < max(factors) <= 1.1 + 1e-6


def test_x_and_y_are_mirrored_by_themselves():
    seen = {(-1, -1): 0, (-1, 1): 0, (1, -1): 0, (1, 1): 0}
    for seed in range(400):
        mirrored = changed(seed, flip=0.5)
        assert torch.equal(mirrored.abs(), POINTS.abs())
        assert torch.equal(mirrored[:, 2], POINTS[:, 2])
        seen[int(mirrored[0, 0] / 10.0), int(mirrored[1, 1] / 5.0)] += 1
    assert list(seen.values()) == pytest.approx([100] * 4, abs=35)


def test_jitter_is_normal_and_clipped():
    coord = torch.zeros(40_000, 3)
    noise = changed(0, coord, jitter=0.005, jitter_clip=0.02)
    assert noise.std().item() == pytest.approx(0.005, rel=0.02)
    assert noise.abs().max() <= 0.02
    clipped = changed(0, coord, jitter=0.005, jitter_clip=0.004)
    assert (clipped.abs() == torch.tensor(0.004)).float().mean().item() == pytest.approx(
        0.42, abs=0.02
    )


def test_a_seed_decides_everything_and_the_input_stays():
    config = AugmentConfig()
    before = POINTS.clone()
    first, again, other = (
        augment(POINTS, config, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, POINTS)
    assert first.dtype == torch.float32


def test_what_a_step_decides_moves_no_later_draw():
    """Two settings leave a generator in the same state: what comes after sees the same numbers."""
    after = []
    for rotate in (0.0, 1.0):
        generator = torch.Generator().manual_seed(5)
        augment(POINTS, AugmentConfig(rotate=rotate), generator)
        after.append(torch.rand(1, generator=generator).item())
    assert after[0] == after[1]


def test_views_are_the_published_ten():
    assert len(VIEWS) == len(set(VIEWS)) == 10
    assert {scale for scale, _ in VIEWS} == {0.9, 0.95, 1.0, 1.05, 1.1}
    assert torch.equal(view(POINTS, 1.0, False), POINTS)
    expected = POINTS * torch.tensor([-0.9, -0.9, 0.9])
    torch.testing.assert_close(view(POINTS, 0.9, True), expected)
