"""Corruptions of colour and storage: brightness, contrast, saturation, JPEG, pixels, elastic.

Each function is called as those of :mod:`domains.common.corruption_noise`.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

Floats = npt.NDArray[np.float32]


def brightness(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """The value (of hue, saturation and value) rises; hue and saturation stay."""
    shift = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    value = image.max(axis=2, keepdims=True)
    brighter = np.minimum(value + np.float32(shift), np.float32(1.0))
    # Hue and saturation are the ratios of the channels; black has none and becomes grey.
    ratio = np.divide(image, value, out=np.ones_like(image), where=value > 0.0)
    return ratio * brighter


def contrast(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Every channel draws near its mean."""
    factor = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    mean = image.mean(axis=(0, 1), keepdims=True, dtype=np.float64).astype(np.float32)
    return (image - mean) * np.float32(factor) + mean


def saturate(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """The saturation is multiplied and shifted: at severities 1 and 2 it falls, then it rises.

    Grey has no hue and counts as red, as in scikit-image.
    """
    factor, shift = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))[severity - 1]
    value = image.max(axis=2, keepdims=True)
    depth = value - image
    spread = depth.max(axis=2, keepdims=True)
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0.0)
    changed = np.clip(saturation * np.float32(factor) + np.float32(shift), 0.0, 1.0)
    red = np.broadcast_to(np.array([0.0, 1.0, 1.0], np.float32), image.shape)
    hue = np.divide(depth, spread, out=red.copy(), where=spread > 0.0)
    return value - value * changed * hue


def jpeg_compression(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Stored as JPEG of low quality and read again."""
    quality = (25, 18, 15, 10, 7)[severity - 1]
    buffer = io.BytesIO()
    _pillow(image).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as stored:
        return _floats(stored)


def pixelate(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Shrunk by averaging, enlarged by repeating."""
    factor = (0.6, 0.5, 0.4, 0.3, 0.25)[severity - 1]
    height, width = image.shape[:2]
    small = max(int(width * factor), 1), max(int(height * factor), 1)
    shrunk = _pillow(image).resize(small, Image.Resampling.BOX)
    return _floats(shrunk.resize((width, height), Image.Resampling.NEAREST))


def elastic_transform(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Pixels move by a smooth random field whose scale is a hundredth of the picture's sides."""
    strength = (12.5, 16.25, 21.25, 25.0, 30.0)[severity - 1]
    height, width = image.shape[:2]
    reach = 0.005 * height
    places = np.indices((height, width), dtype=np.float32)
    for axis in (1, 0):
        field = generator.uniform(-reach, reach, (height, width))
        smooth = ndimage.gaussian_filter(
            field, (0.01 * height, 0.01 * width), mode="reflect", truncate=3.0
        )
        places[axis] += (smooth * strength).astype(np.float32)
    channels = [
        ndimage.map_coordinates(image[..., channel], places, order=1, mode="reflect")
        for channel in range(3)
    ]
    return np.stack(channels, axis=2)


def _pillow(image: Floats) -> Image.Image:
    return Image.fromarray(np.rint(image * np.float32(255.0)).astype(np.uint8))


def _floats(image: Image.Image) -> Floats:
    return np.asarray(image, dtype=np.float32) / np.float32(255.0)
