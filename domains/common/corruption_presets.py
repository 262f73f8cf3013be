"""Which corruptions a robustness number is about: named sets of types and severities."""

from __future__ import annotations

from collections.abc import Mapping

NOISES = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")

SIXTEEN = (
    "motion_blur",
    "defocus_blur",
    "glass_blur",
    "gaussian_blur",
    *NOISES,
    "brightness",
    "contrast",
    "saturate",
    "jpeg_compression",
    "snow",
    "spatter",
    "fog",
    "frost",
)
"""Types of Kamann & Rother 2020 (arXiv 1908.05005) for segmentation."""

NINETEEN = (*SIXTEEN, "zoom_blur", "elastic_transform", "pixelate")
"""All types of ImageNet-C (Hendrycks & Dietterich 2019, arXiv 1903.12261), the four extra ones
included."""

SEVERITIES = (1, 2, 3, 4, 5)

Preset = Mapping[str, tuple[int, ...]]
"""Severities by type. A score is the mean over the types of the mean over their severities."""

PRESETS: Mapping[str, Preset] = {
    # SegFormer's and FAN's papers after Kamann & Rother: NVlabs/SegFormer issue 71.
    "kamann16": {name: SEVERITIES[:3] if name in NOISES else SEVERITIES for name in SIXTEEN},
    # NVlabs/FAN, `segmentation/tools/test_city_c.py`, which gives no mean over the types.
    "fan19": dict.fromkeys(NINETEEN, SEVERITIES[:3]),
    # stefvk/Elliptical-Attention, `ADE20K/train.py` and `data/config/ade20k.py`.
    "elliptical19": dict.fromkeys(NINETEEN, SEVERITIES[:1]),
}
