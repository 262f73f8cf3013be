"""Corruptions of the weather: snow, frost, fog and spatter.

Each function is called as those of :mod:`domains.common.corruption_noise`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from domains.common.corruption_blur import gaussian, trace, zoomed
from domains.common.corruption_edges import edges
from domains.common.corruption_noise import normal

Floats = npt.NDArray[np.float32]

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue."""

TURQUOISE = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)


def snow(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Flakes that fall in one direction, and the same turned by 180 degrees, on a paler picture."""
    mean, deviation, size, threshold, radius, length, kept = (
        (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity - 1]
    flakes = zoomed(normal(generator, image.shape[:2], mean, deviation), size)
    flakes = np.where(flakes < threshold, np.float32(0.0), np.minimum(flakes, 1.0))
    flakes = trace(flakes, radius, length, generator.uniform(-135, -45))
    flakes = np.rint(flakes * np.float32(255.0)) / np.float32(255.0)
    grey = (image @ np.array(GREY, np.float32))[..., None]
    pale = np.maximum(image, grey * np.float32(1.5) + np.float32(0.5))
    mixed = np.float32(kept) * image + np.float32(1.0 - kept) * pale
    return mixed + (flakes + flakes[::-1, ::-1])[..., None]


LOOKS = (
    ((78, 149, 166), (27, 16, 15)),
    ((201, 205, 214), (21, 22, 23)),
    ((201, 205, 214), (21, 22, 23)),
    ((138, 153, 165), (28, 28, 30)),
    ((112, 123, 135), (44, 43, 42)),
    ((71, 95, 105), (35, 43, 47)),
)
"""Mean and standard deviation of red, green and blue in the six photographs of the reference."""

OCTAVES = ((48, 1.0), (24, 0.8), (12, 0.6), (6, 0.4))
"""Widths in pixels of the crystals, and their weights."""


def frost(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A pane of frost over a darker picture.

    The reference lays a piece of one of six photographs over the picture. Here the crystals are
    drawn, in the colours of one of the photographs: what the eye sees differs, brightness and
    contrast do not.
    """
    kept, weight = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    mean, deviation = LOOKS[generator.integers(len(LOOKS))]
    crystals = _crystals(image.shape[:2], generator)[..., None]
    colour = np.array(mean, np.float32) + crystals * np.array(deviation, np.float32)
    pane = np.clip(colour / np.float32(255.0), 0.0, 1.0)
    return np.float32(kept) * image + np.float32(weight) * pane


def _crystals(shape: tuple[int, int], generator: np.random.Generator) -> Floats:
    """Bright ridges of several widths, of mean 0 and deviation 1."""
    total = np.zeros(shape, np.float32)
    for width, weight in OCTAVES:
        coarse = normal(generator, tuple(side // width + 4 for side in shape), 0.0, 1.0)
        smooth = ndimage.zoom(coarse, width, order=3)[: shape[0], : shape[1]]
        total -= np.float32(weight) * np.abs(smooth)
    total -= total.mean()
    return total / max(float(total.std()), 1e-6)


def fog(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A fractal cloud is added, and the whole scaled back to the old maximum."""
    strength, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    height, width = image.shape[:2]
    side = 2 ** (max(height, width) - 1).bit_length()
    cloud = _cloud(side, decay, generator)[:height, :width, None]
    top = image.max()
    return (image + np.float32(strength) * cloud) * (top / (top + np.float32(strength)))


def _cloud(side: int, decay: float, generator: np.random.Generator) -> Floats:
    """(side, side) from 0 to 1 by the diamond-square algorithm on a torus.

    Args:
        side: a power of two.
        decay: by how much the random part falls from one scale to the next.
        generator: source of the random part.
    """
    field = np.zeros((side, side), np.float32)
    step, amplitude = side, 1.0

    def around(neighbours: Floats) -> Floats:
        noise = generator.uniform(-amplitude, amplitude, neighbours.shape)
        return neighbours / 4 + noise.astype(np.float32)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        rows = corners + np.roll(corners, -1, axis=0)
        centres = around(rows + np.roll(rows, -1, axis=1))
        field[half::step, half::step] = centres
        above = corners + np.roll(corners, -1, axis=1)
        field[::step, half::step] = around(above + centres + np.roll(centres, 1, axis=0))
        beside = corners + np.roll(corners, -1, axis=0)
        field[half::step, ::step] = around(beside + centres + np.roll(centres, 1, axis=1))
        # Twice, as in the reference, whose noise is a product of two numbers that decay.
        step, amplitude = half, amplitude / decay**2
    field -= field.min()
    return field / max(float(field.max()), 1e-6)


def spatter(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Drops of water at severities 1 to 3, of mud at 4 and 5."""
    mean, deviation, size, threshold, strength = (
        (0.65, 0.3, 4, 0.69, 0.6),
        (0.65, 0.3, 3, 0.68, 0.6),
        (0.65, 0.3, 2, 0.68, 0.5),
        (0.65, 0.3, 1, 0.65, 1.5),
        (0.67, 0.4, 1, 0.65, 1.5),
    )[severity - 1]
    liquid = gaussian(normal(generator, image.shape[:2], mean, deviation), size)
    wet = liquid >= threshold
    if severity > 3:
        cover = gaussian(wet.astype(np.float32), strength)
        cover = np.where(cover < 0.8, np.float32(0.0), cover)[..., None]
        return image * (1 - cover) + cover * np.array(MUD, np.float32)
    drops = np.where(wet, liquid * np.float32(255.0), 0).astype(np.uint8)
    shine = drops.astype(np.float32) * _relief(drops)
    shine *= np.float32(strength / max(float(shine.max()), 1e-6))
    return image + shine[..., None] * np.array(TURQUOISE, np.float32)


def _relief(drops: npt.NDArray[np.uint8]) -> Floats:
    """Light on the drops, from the distance to their edges, lit from one side."""
    near = _box(np.minimum(_distance(edges(drops, 50, 150)), 20.0))
    # The mean of equal whole numbers must not lose one to rounding.
    spread = _equalised((near + 1e-3).astype(np.uint8)).astype(np.int32)
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    lit = np.clip(ndimage.correlate(spread, slope, mode="mirror"), 0, 255)
    return np.rint(_box(lit.astype(np.float32))).astype(np.float32)


def _distance(marked: npt.NDArray[np.bool_]) -> Floats:
    """To the nearest marked pixel, as a king and a knight go (Borgefors 1986).

    A step costs 1 along an axis, 1.4 along a diagonal, 2.1969 as a knight's move. What is added
    to the true distance, up to 2 %, decides where the relief has its steps.
    """
    if not marked.any():
        return np.full(marked.shape, np.inf, np.float32)
    nearest = ndimage.distance_transform_edt(~marked, return_distances=False, return_indices=True)
    apart = np.abs(nearest - np.indices(marked.shape))
    far, near = apart.max(axis=0), apart.min(axis=0)
    knight = np.minimum(near, far - near)
    diagonal = np.maximum(2 * near - far, 0)
    return 2.1969 * knight + 1.4 * diagonal + np.maximum(far - 2 * near, 0)


def _box(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return ndimage.uniform_filter(values, 3, mode="mirror")


def _equalised(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Values 0 to 255 that occur equally often, as far as equal values allow."""
    below = np.cumsum(np.bincount(values.ravel(), minlength=256))
    first = below[below > 0][0]
    scale = 255.0 / max(int(below[-1] - first), 1)
    return np.rint(np.maximum(below - first, 0) * scale).astype(np.uint8)[values]
