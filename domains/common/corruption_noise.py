"""Corruptions that add noise: Gaussian, shot, impulse and speckle noise.

Each function takes (H, W, 3) float32 from 0 to 1, a severity from 1 to 5 and the generator that it
draws from; what it returns is clipped to 0 to 1 by the caller. Strengths are those of ImageNet-C
(see :mod:`domains.common.corruptions`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def gaussian_noise(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Normal noise of one deviation everywhere."""
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return image + normal(generator, image.shape, 0.0, deviation)


def shot_noise(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Poisson counts of so many photons for a white pixel."""
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return (generator.poisson(image * photons) / photons).astype(np.float32)


def impulse_noise(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """A share of the values becomes 0 or 1, either with the same probability."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    chance = generator.random(image.shape, dtype=np.float32)
    noisy = np.where(chance < share, np.float32(0.0), image)
    return np.where(chance < share / 2, np.float32(1.0), noisy)


def speckle_noise(image: Floats, severity: int, generator: np.random.Generator) -> Floats:
    """Normal noise in proportion to the value."""
    deviation = (0.15, 0.2, 0.35, 0.45, 0.6)[severity - 1]
    return image + image * normal(generator, image.shape, 0.0, deviation)


def normal(
    generator: np.random.Generator, shape: tuple[int, ...], mean: float, deviation: float
) -> Floats:
    """Normal numbers, drawn in float64: so NumPy's old generators give the reference's too."""
    return generator.normal(mean, deviation, shape).astype(np.float32)
