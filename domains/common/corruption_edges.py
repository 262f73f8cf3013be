"""Canny's edge detector, of which one corruption makes use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

TAN_22_5 = 0.41421356237309503


def edges(image: npt.NDArray[np.uint8], low: float, high: float) -> npt.NDArray[np.bool_]:
    """Where the edges of a picture are, one pixel wide.

    Args:
        image: (H, W).
        low: slope, by Sobel's filter and in the 1-norm, that an edge must exceed everywhere.
        high: slope that it must exceed somewhere.

    Source: Canny 1986, "A Computational Approach to Edge Detection".
    """
    values = image.astype(np.int32)
    across, down = (ndimage.sobel(values, axis=axis, mode="nearest") for axis in (1, 0))
    slope = np.abs(across) + np.abs(down)
    ridge = (slope > low) & _peak(slope, across, down)
    parts, _ = ndimage.label(ridge, structure=np.ones((3, 3)))
    strong = np.zeros(parts.max() + 1, bool)
    strong[parts[ridge & (slope > high)]] = True
    return strong[parts]


def _peak(
    slope: npt.NDArray[np.int32], across: npt.NDArray[np.int32], down: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Where the slope is largest along its direction, of the four that a pixel has."""
    framed = np.pad(slope, 1)

    def at(rows: int, columns: int) -> npt.NDArray[np.int32]:
        height, width = slope.shape
        return framed[1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    wide, high = np.abs(across), np.abs(down)
    horizontal = high < TAN_22_5 * wide
    vertical = wide < TAN_22_5 * high
    falling = (across < 0) == (down < 0)
    return np.select(
        [horizontal, vertical, falling],
        [
            (slope > at(0, -1)) & (slope >= at(0, 1)),
            (slope > at(-1, 0)) & (slope >= at(1, 0)),
            (slope > at(-1, -1)) & (slope > at(1, 1)),
        ],
        (slope > at(-1, 1)) & (slope > at(1, -1)),
    )
