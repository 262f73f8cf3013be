"""Random changes of a training frame: turned, scaled, mirrored, shaken.

Source: `configs/nuscenes/semseg-pt-v3m1-0-base.py` of Pointcept/Pointcept at d74c646, and
`pointcept/datasets/transform.py` there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROTATION_CHANCE = 0.5
SCALES = (0.9, 1.1)
FLIP_CHANCE = 0.5
JITTER = 0.005
"""Standard deviation, m."""
JITTER_LIMIT = 0.02
"""Largest displacement along an axis, m."""


def augment(coord: Tensor, generator: torch.Generator) -> Tensor:
    """Coordinates of a frame as one training step sees them.

    With a probability of one half turned about the z axis by an angle from [-pi, pi); scaled by a
    factor from [0.9, 1.1); x and y each mirrored with a probability of one half; every coordinate
    moved by a normal deviate of 5 mm, at most 2 cm. Takes the same number of draws whatever they
    decide.

    Args:
        coord: (N, 3) float32, m, in the sensor's frame; left as it is.
        generator: source of all draws, on the CPU.

    Returns:
        (N, 3) float32, m.
    """
    turns, angle, scale, mirror_x, mirror_y = torch.rand(
        5, generator=generator, dtype=torch.float64
    ).tolist()
    theta = (2.0 * angle - 1.0) * math.pi if turns < ROTATION_CHANCE else 0.0
    factor = SCALES[0] + (SCALES[1] - SCALES[0]) * scale
    sign_x = -1.0 if mirror_x < FLIP_CHANCE else 1.0
    sign_y = -1.0 if mirror_y < FLIP_CHANCE else 1.0
    cos, sin = math.cos(theta), math.sin(theta)
    matrix = factor * torch.tensor(
        [
            [sign_x * cos, -sign_x * sin, 0.0],
            [sign_y * sin, sign_y * cos, 0.0],
            [0.0, 0.0, 1.0],
        ]
    )
    jitter = torch.randn(coord.shape, generator=generator) * JITTER
    return coord @ matrix.T + jitter.clamp_(-JITTER_LIMIT, JITTER_LIMIT)


TEST_VIEWS: tuple[tuple[float, bool], ...] = tuple(
    (scale, flip) for flip in (False, True) for scale in (0.9, 0.95, 1.0, 1.05, 1.1)
)
"""Views of a test frame under protocol `tta`: scale, and whether x and y are both mirrored."""


def view(coord: Tensor, scale: float, flip: bool) -> Tensor:
    """Coordinates of a test frame as one of :data:`TEST_VIEWS` shows them, (N, 3) float32, m."""
    signs = torch.tensor([-1.0, -1.0, 1.0] if flip else [1.0, 1.0, 1.0], device=coord.device)
    return coord * (signs * scale)
