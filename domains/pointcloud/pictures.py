"""A frame from above, coloured by class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

REACH = 40.0
"""Metres that are shown ahead, behind and to both sides."""

PIXELS = 400
DOT = 3
"""Edge of a point in pixels."""

BACKGROUND = 255

COLOURS = np.array(
    [
        (112, 128, 144), (220, 20, 60), (255, 127, 80), (255, 158, 0), (233, 150, 70),
        (255, 61, 99), (0, 0, 230), (47, 79, 79), (255, 140, 0), (255, 99, 71), (0, 207, 191),
        (175, 0, 75), (75, 0, 75), (112, 180, 60), (222, 184, 135), (0, 175, 0), (225, 225, 225),
    ],
    dtype=np.uint8,
)  # fmt: skip
"""(17, 3), by class; the last one is for ignored points, whose number is -1.

Source: the nuScenes devkit's own colours.
"""


def from_above(coord: Tensor, label: Tensor) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 picture; ahead is up, and higher points cover lower ones.

    Args:
        coord: (N, 3) float32, metres: right, ahead, up.
        label: (N,) int64 class, or -1.
    """
    order = np.argsort(coord[:, 2].numpy(), kind="stable")
    place = coord[:, :2].numpy()[order]
    colour = COLOURS[label.numpy()[order]]
    across = np.floor((place[:, 0] + REACH) * PIXELS / (2 * REACH)).astype(np.int64)
    down = np.floor((REACH - place[:, 1]) * PIXELS / (2 * REACH)).astype(np.int64)
    picture = np.full((PIXELS, PIXELS, 3), BACKGROUND, dtype=np.uint8)
    for dy in range(DOT):
        for dx in range(DOT):
            row, column = down + dy - DOT // 2, across + dx - DOT // 2
            inside = (row >= 0) & (row < PIXELS) & (column >= 0) & (column < PIXELS)
            picture[row[inside], column[inside]] = colour[inside]
    return picture
