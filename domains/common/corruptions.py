"""The 19 corruptions of ImageNet-C at five severities, for pictures of any size.

Implemented anew from their definitions: Hendrycks & Dietterich 2019, "Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations" (arXiv 1903.12261), for pictures of any size as
in bethgelab/imagecorruptions at c959e65 (Apache-2.0), whose strengths are used. Differences: random
numbers come from a generator of the caller's, and the textures of `frost` are drawn, not
photographs (:mod:`domains.common.corruption_weather`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from domains.common import corruption_blur as blur
from domains.common import corruption_digital as digital
from domains.common import corruption_noise as noise
from domains.common import corruption_weather as weather
from domains.common.corruption_presets import SEVERITIES
from domains.contract import refuse_unknown, refuse_unless

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

Corruption = Callable[[Floats, int, np.random.Generator], Floats]

CORRUPTIONS: Mapping[str, Corruption] = {
    function.__name__: function
    for function in (
        noise.gaussian_noise,
        noise.shot_noise,
        noise.impulse_noise,
        noise.speckle_noise,
        blur.defocus_blur,
        blur.glass_blur,
        blur.motion_blur,
        blur.zoom_blur,
        blur.gaussian_blur,
        weather.snow,
        weather.frost,
        weather.fog,
        weather.spatter,
        digital.brightness,
        digital.contrast,
        digital.saturate,
        digital.jpeg_compression,
        digital.pixelate,
        digital.elastic_transform,
    )
}
"""By name: those of :data:`domains.common.corruption_presets.NINETEEN`."""


def corrupt(image: Pixels, name: str, severity: int, generator: np.random.Generator) -> Pixels:
    """A corrupted copy of a picture.

    Args:
        image: (H, W, 3) uint8, RGB.
        name: of the corruption.
        severity: 1 to 5.
        generator: source of all that is random; its state decides the result.

    Returns:
        (H, W, 3) uint8; fractions are cut off, as in the reference.

    Raises:
        ValueError: unknown corruption or severity, or no such picture.
    """
    refuse_unknown("corruption", name, CORRUPTIONS)
    refuse_unless(severity in SEVERITIES, "severity", severity, "from 1 to 5")
    fits = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size > 0
    what = f"{image.dtype} {image.shape}"
    refuse_unless(fits, "image", what, "uint8 of shape (height, width, 3)")
    values = image.astype(np.float32) / np.float32(255.0)
    changed = CORRUPTIONS[name](values, severity, generator)
    # A little more than the float32 error of a whole number, which must not lose one.
    return (np.clip(changed, 0.0, 1.0) * np.float32(255.0) + np.float32(1e-3)).astype(np.uint8)
