"""Reads pictures and label maps from files of every common kind, or says what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from domains.contract import DataCorrupt

Pixels = npt.NDArray[np.uint8]
"""(H, W, 3) RGB."""

Indices = npt.NDArray[Any]
"""(H, W) integers, one a pixel."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
"""Of the files that are taken for pictures, in lower case."""

DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of grey values above 8 bits."""

INDEXED = ("1", "L", "P", *DEEP)
"""Modes with one number a pixel."""

ERRORS = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises for files that are missing, truncated or no pictures."""


def read_image(path: Path) -> Pixels:
    """A picture as it is meant to be seen.

    Grey-scale, palette and CMYK pictures become RGB, 16 bits become 8, an alpha channel is
    dropped, and a rotation that a camera noted in the file is carried out.

    Returns:
        (H, W, 3) uint8, RGB.

    Raises:
        DataCorrupt: the file is missing, damaged, or holds something else.
    """
    image = _open(path)
    if image.mode in DEEP:
        grey = np.asarray(image)
        low, high = int(grey.min()), int(grey.max())
        if low < 0 or high > 65535:
            raise DataCorrupt(f"{path} holds grey values from {low} to {high}, not of 16 bits")
        image = Image.fromarray(np.round(grey / 257.0).astype(np.uint8))
    if image.mode == "F":
        raise DataCorrupt(f"{path} holds floating-point values, not 8 or 16 bits a channel")
    return np.array(image.convert("RGB"))


def read_indices(path: Path) -> Indices:
    """A label map: the number of every pixel, a palette left aside.

    Returns:
        (H, W) integers as the file holds them.

    Raises:
        DataCorrupt: as :func:`read_image`, or the file has several channels.
    """
    image = _open(path)
    if image.mode not in INDEXED:
        raise DataCorrupt(
            f"{path} is a picture of mode {image.mode}; a label map has one channel, which holds "
            "the class of every pixel (8 or 16 bits, with or without a palette)"
        )
    indices = np.array(image)
    return indices.astype(np.uint8) if indices.dtype == bool else indices


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
            return ImageOps.exif_transpose(image)
    except ERRORS as error:
        raise DataCorrupt(f"{path} cannot be read as a picture: {error}") from error
