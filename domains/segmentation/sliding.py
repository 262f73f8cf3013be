"""Scores of whole pictures from a window that slides over them.

Source: rstrudel/segmenter at 20d1bfa, `segm/model/utils.py`, `sliding_window`, `merge_windows`,
`inference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from domains.segmentation.model import Segmenter, upsample

WINDOWS_AT_ONCE = 4
"""Windows that go through the network together: a matter of memory, not of the result."""


def window_offsets(side: int, window: int, stride: int) -> list[int]:
    """Where windows begin along a side: every `stride` pixels, the last one at the end.

    Args:
        side: of the picture, at least `window`.
        window: side of a window.
        stride: at most `window`.
    """
    return [*range(0, side - window, stride), side - window]


def score_picture(
    net: Segmenter, image: Tensor, *, window: int, stride: int, size: tuple[int, int]
) -> Tensor:
    """Scores (K, *size) of a picture: means of those of all windows over a pixel, then resized.

    Args:
        net: the model.
        image: (1, 3, H, W); one that a window does not fit into is enlarged first.
        window: side of the windows.
        stride: pixels from one to the next.
        size: (H0, W0) of the original picture.
    """
    image = _enlarge(image, window)
    height, width = image.shape[2:]
    rows = window_offsets(height, window, stride)
    columns = window_offsets(width, window, stride)
    corners = list(product(rows, columns))
    total: Tensor | None = None
    for first in range(0, len(corners), WINDOWS_AT_ONCE):
        some = corners[first : first + WINDOWS_AT_ONCE]
        crops = torch.cat([image[:, :, y : y + window, x : x + window] for y, x in some])
        scores = upsample(net(crops), net.patch, (window, window))
        if total is None:
            total = scores.new_zeros(scores.shape[1], height, width)
        for (y, x), score in zip(some, scores, strict=True):
            total[:, y : y + window, x : x + window] += score
    assert total is not None
    over_rows = _times_covered(rows, window, height, total)
    over_columns = _times_covered(columns, window, width, total)
    total /= over_rows[:, None] * over_columns
    return F.interpolate(total[None], size=size, mode="bilinear", align_corners=False)[0]


def predict(
    net: Segmenter,
    images: Sequence[Tensor],
    *,
    window: int,
    stride: int,
    size: tuple[int, int],
    mirrored: bool,
) -> Tensor:
    """Class of every pixel of a picture, (H0, W0) int64.

    Args:
        net: the model.
        images: the picture at one or several scales, each (1, 3, H, W).
        window, stride, size: see :func:`score_picture`.
        mirrored: whether each is scored mirrored as well. Probabilities of several are averaged.
    """
    if len(images) == 1 and not mirrored:
        return score_picture(net, images[0], window=window, stride=stride, size=size).argmax(0)
    total: Tensor | None = None
    for image in images:
        for flip in (False, True) if mirrored else (False,):
            given = image.flip(3) if flip else image
            scores = score_picture(net, given, window=window, stride=stride, size=size)
            found = (scores.flip(2) if flip else scores).softmax(0)
            total = found if total is None else total.add_(found)
    assert total is not None
    return total.argmax(0)


def _enlarge(image: Tensor, window: int) -> Tensor:
    """A picture whose shorter side is at least `window`, aspect ratio kept."""
    height, width = image.shape[2:]
    shorter = min(height, width)
    if shorter >= window:
        return image
    # As in `resize` of the source: the longer side is cut down to a whole pixel.
    long = int(max(height, width) / shorter * window)
    size = (window, long) if height <= width else (long, window)
    return F.interpolate(image, size=size, mode="bilinear", align_corners=False)


def _times_covered(offsets: list[int], window: int, side: int, like: Tensor) -> Tensor:
    """(side,) how many windows lie over each place along a side."""
    times = like.new_zeros(side)
    for offset in offsets:
        times[offset : offset + window] += 1.0
    return times
