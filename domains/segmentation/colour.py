"""Photometric distortion: brightness, contrast, saturation and hue, as mmsegmentation has it.

Source: open-mmlab/mmsegmentation 0.14.1, `mmseg/datasets/pipelines/transforms.py`, class
PhotoMetricDistortion, with the 8-bit HSV of OpenCV: hue in 180 steps of two degrees, so that a
`hue_delta` of 18 is 36 degrees. Every step ends with whole numbers from 0 to 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from domains.segmentation.images import Pixels

BRIGHTNESS = 32.0
"""Largest shift of brightness, on 0 to 255."""

CONTRAST = SATURATION = (0.5, 1.5)
"""Range of the factors."""

HUE = 18
"""Largest shift of hue, in steps of two degrees; upwards it is one step less."""

HUES = 180
"""Steps of the colour circle."""

Floats = npt.NDArray[np.float32]
Hues = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Photometric:
    """The random numbers of a distortion; None leaves a step out.

    Attributes:
        brightness: added.
        contrast: factor on all channels.
        contrast_last: whether contrast comes after the colours instead of before them.
        saturation: factor on the saturation.
        hue: steps of two degrees.
    """

    brightness: float | None = None
    contrast: float | None = None
    contrast_last: bool = False
    saturation: float | None = None
    hue: int | None = None

    @classmethod
    def of(cls, generator: np.random.Generator) -> Photometric:
        """Each step with probability one half, its strength uniform."""
        brightness, contrast, last, saturation, hue = generator.random(5) < 0.5
        shift = generator.uniform(-BRIGHTNESS, BRIGHTNESS)
        factors = generator.uniform(*CONTRAST), generator.uniform(*SATURATION)
        steps = generator.integers(-HUE, HUE)
        return cls(
            brightness=float(shift) if brightness else None,
            contrast=float(factors[0]) if contrast else None,
            contrast_last=bool(last),
            saturation=float(factors[1]) if saturation else None,
            hue=int(steps) if hue else None,
        )


def distort(image: Pixels, draws: Photometric) -> Pixels:
    """A picture with other brightness, contrast, saturation and hue.

    Args:
        image: (H, W, 3) uint8, RGB.
        draws: what is done, and how much.
    """
    if draws.brightness is not None:
        image = _linear(image, 1.0, draws.brightness)
    if draws.contrast is not None and not draws.contrast_last:
        image = _linear(image, draws.contrast, 0.0)
    if draws.saturation is not None:
        hue, saturation, value = hsv_of(image)
        image = rgb_of(hue, _linear(saturation, draws.saturation, 0.0), value)
    if draws.hue is not None:
        hue, saturation, value = hsv_of(image)
        image = rgb_of((hue + draws.hue) % HUES, saturation, value)
    if draws.contrast is not None and draws.contrast_last:
        image = _linear(image, draws.contrast, 0.0)
    return image


def _linear(values: Pixels, factor: float, shift: float) -> Pixels:
    """Fractions are cut off, as in the original."""
    table = np.arange(256, dtype=np.float32) * np.float32(factor) + np.float32(shift)
    return table.clip(0, 255).astype(np.uint8)[values]


def hsv_of(image: Pixels) -> tuple[Hues, Pixels, Pixels]:
    """Hue from 0 to 179, saturation and value from 0 to 255, each (H, W).

    In OpenCV's fixed-point arithmetic, bit for bit.
    """
    red, green, blue = (np.ascontiguousarray(image[..., channel]) for channel in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    saturation = _divided(spread, 255.0, value)
    r, g, b = (channel.astype(np.int32) for channel in (red, green, blue))
    sector = np.where(value == green, b - r + 2 * spread.astype(np.int32), g - b)
    sector = np.where(value == red, g - b, sector)
    last = (value != red) & (value != green)
    sector = np.where(last, r - g + 4 * spread.astype(np.int32), sector)
    hue = _divided(sector, HUES / 6.0, spread)
    return np.where(hue < 0, hue + HUES, hue), saturation.astype(np.uint8), value


def _divided(numerator: npt.NDArray[Any], factor: float, divisor: Pixels) -> npt.NDArray[np.int32]:
    """numerator * factor / divisor, rounded to whole numbers; 0 where the divisor is 0."""
    with np.errstate(divide="ignore"):
        inverse = np.rint(factor * 4096.0 / np.arange(256))
    inverse[0] = 0.0
    product = numerator.astype(np.int32) * inverse.astype(np.int32)[divisor]
    return (product + 2048) >> 12


def _weights() -> Floats:
    """(180, 3): how far R, G and B lie below the value, at full saturation."""
    position = (np.arange(HUES)[:, None] / (HUES / 6.0) + np.array([5.0, 3.0, 1.0])) % 6.0
    return np.clip(np.minimum(position, 4.0 - position), 0.0, 1.0).astype(np.float32)


WEIGHTS = _weights()


def rgb_of(hue: Hues, saturation: Pixels, value: Pixels) -> Pixels:
    """(H, W, 3) of the channels that :func:`hsv_of` gives."""
    top = value.astype(np.float32)
    depth = top * saturation * np.float32(1.0 / 255.0)
    colours = top[..., None] - depth[..., None] * WEIGHTS[hue]
    # Cut off, as OpenCV 5 does; a whole number must not lose one to rounding.
    return (colours + np.float32(1e-3)).astype(np.uint8)
