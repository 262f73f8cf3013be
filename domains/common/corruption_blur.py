"""Corruptions that blur: defocus, glass, motion, zoom and Gaussian blur.

Each function is called as those of :mod:`domains.common.corruption_noise`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage, signal
from torch.nn import functional as F

Floats = npt.NDArray[np.float32]


def gaussian_blur(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A Gaussian kernel."""
    return gaussian(image, (1, 2, 3, 4, 6)[severity - 1])


def defocus_blur(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A disk with soft edges."""
    radius, softness = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity - 1]
    reach = max(radius, 8)
    rows, columns = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    disk = (rows**2 + columns**2 <= radius**2).astype(np.float32)
    soft = 1 if radius <= 8 else 2
    kernel = ndimage.gaussian_filter(disk / disk.sum(), softness, mode="mirror", radius=soft)
    margin = ((reach, reach), (reach, reach), (0, 0))
    framed = np.pad(image, margin, mode="reflect")
    return signal.fftconvolve(framed, kernel[..., None], mode="valid", axes=(0, 1))


def glass_blur(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Pixels are replaced by neighbours, one after the other, between two Gaussian blurs.

    The order is that of the reference: from the bottom right to the top left, so that a pixel may
    get what its neighbour has got before. (The reference means to exchange the two, but both end
    with the neighbour's value.)
    """
    deviation, reach, rounds = (
        (0.7, 1, 2),
        (0.9, 2, 1),
        (1.0, 2, 3),
        (1.1, 3, 2),
        (1.5, 4, 2),
    )[severity - 1]
    blurred = gaussian(image, deviation)
    # Cut to whole numbers of 0 to 255, as in the reference.
    pixels = (blurred * np.float32(255.0) + np.float32(1e-3)).astype(np.uint8)
    for _ in range(rounds):
        pixels = pixels.reshape(-1, 3)[_taken_from(image.shape[:2], reach, generator)]
        pixels = pixels.reshape(image.shape)
    return gaussian(pixels.astype(np.float32) / np.float32(255.0), deviation)


def _taken_from(
    shape: tuple[int, int], reach: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """For every pixel, in raster order, the one whose value it ends with after one round."""
    height, width = shape
    count = height * width
    places = np.arange(count).reshape(height, width)
    # Node n is the old value of pixel n, node count + n what it ends with.
    follow = np.concatenate([places.ravel(), places.ravel()])
    rows = slice(reach + 1, height - reach + 1)
    columns = slice(reach + 1, width - reach + 1)
    own = places[rows, columns]
    down, right = generator.integers(-reach, reach, (2, *own.shape))
    source = own + down * width + right
    row, column = source // width, source % width
    visited = (row >= rows.start) & (column >= columns.start) & (column < columns.stop)
    before = visited & (row < rows.stop) & (source > own)
    follow[count + own] = np.where(before, count + source, source)
    while (follow[count:] >= count).any():
        follow = follow[follow]
    return follow[count:]


def motion_blur(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A trace in a direction within 45 degrees of horizontal, fading like half a Gaussian."""
    radius, deviation = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[severity - 1]
    return trace(image, radius, deviation, generator.uniform(-45, 45))


def zoom_blur(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """The mean of the picture and ever larger copies of it.

    The numbers of copies, uneven as they are, are those that the reference gets from its floating
    point ranges.
    """
    copies, step = ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03))[severity - 1]
    total = image.copy()
    for copy in range(copies):
        total += zoomed(image, 1.0 + copy * step)
    return total / np.float32(copies + 1)


def gaussian(values: Floats, deviation: float) -> Floats:
    """Blurred along the first two axes; the border is continued by its last pixel."""
    return ndimage.gaussian_filter(values, deviation, mode="nearest", truncate=4.0, axes=(0, 1))


def trace(values: Floats, radius: int, deviation: float, angle: float) -> Floats:
    """Values smeared in one direction.

    Args:
        values: (H, W) or (H, W, 3).
        radius: half the length of the trace in pixels.
        deviation: of the half Gaussian that it fades with, in pixels.
        angle: in degrees; 0 takes from the right, 90 from below.
    """
    length = 2 * radius + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2.0 * deviation**2))
    weights /= weights.sum()
    margin = [(length, length)] * 2 + [(0, 0)] * (values.ndim - 2)
    framed = np.pad(values, margin, mode="edge")
    height, width = values.shape[:2]
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    total = np.zeros_like(values)
    for distance, weight in enumerate(weights.astype(np.float32)):
        top = length + math.ceil(distance * sine - 0.5)
        left = length + math.ceil(distance * cosine - 0.5)
        total += weight * framed[top : top + height, left : left + width]
    return total


def zoomed(values: Floats, factor: float) -> Floats:
    """The centre enlarged bilinearly, corner pixels on corner pixels, cut to the old size.

    Args:
        values: (H, W) or (H, W, 3).
        factor: at least 1.
    """
    height, width = values.shape[:2]
    rows, columns = (math.ceil(side / factor) for side in (height, width))
    top, left = (height - rows) // 2, (width - columns) // 2
    centre = np.atleast_3d(values)[top : top + rows, left : left + columns]
    size = max(round(rows * factor), height), max(round(columns * factor), width)
    planes = torch.from_numpy(np.ascontiguousarray(centre.transpose(2, 0, 1)))[None]
    enlarged = F.interpolate(planes, size=size, mode="bilinear", align_corners=True)[0]
    cut: Floats = enlarged[:, :height, :width].permute(1, 2, 0).numpy()
    return cut.reshape(values.shape)
