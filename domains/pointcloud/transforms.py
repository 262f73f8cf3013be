"""Random changes of a training frame, and the fixed ones of a test frame.

Source: `configs/nuscenes/semseg-pt-v3m1-0-base.py` of Pointcept/Pointcept at d74c646, and
`pointcept/datasets/transform.py` there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from domains.pointcloud.config import AugmentConfig


def augment(coord: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Coordinates of a frame as one training step sees them.

    Turned about the z axis of the sensor, scaled, mirrored in x and in y, and shaken. The same
    number of draws is taken whatever they decide.

    Args:
        coord: (N, 3) float32, m, in the sensor's frame; left as it is.
        config: how much of each.
        generator: source of all draws, on the CPU.

    Returns:
        (N, 3) float32, m.
    """
    draws = torch.rand(5, generator=generator, dtype=torch.float64).tolist()
    rotates, angle, factor, mirrors_x, mirrors_y = draws
    theta = (2.0 * angle - 1.0) * math.pi if rotates < config.rotate else 0.0
    low, high = config.scale
    scale = low + (high - low) * factor
    scale_x = -scale if mirrors_x < config.flip else scale
    scale_y = -scale if mirrors_y < config.flip else scale
    cos, sin = math.cos(theta), math.sin(theta)
    matrix = torch.tensor(
        [
            [scale_x * cos, -scale_x * sin, 0.0],
            [scale_y * sin, scale_y * cos, 0.0],
            [0.0, 0.0, scale],
        ]
    )
    noise = torch.randn(coord.shape, generator=generator) * config.jitter
    return coord @ matrix.T + noise.clamp_(-config.jitter_clip, config.jitter_clip)


VIEWS: tuple[tuple[float, bool], ...] = tuple(
    (scale, mirrored) for mirrored in (False, True) for scale in (0.9, 0.95, 1.0, 1.05, 1.1)
)
"""What protocol `tta` shows of a frame: its scale, and whether both x and y are mirrored."""


def view(coord: Tensor, scale: float, mirrored: bool) -> Tensor:
    """Coordinates of a test frame in one of :data:`VIEWS`, (N, 3) float32, m."""
    side = -scale if mirrored else scale
    return coord * torch.tensor([side, side, scale])
