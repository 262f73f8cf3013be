"""Pairs of pictures and masks: those of two folders, or those that a list names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from domains.contract import DataCorrupt
from domains.segmentation.images import SUFFIXES

SHOWN = 3
"""Names in a message, of however many it is about."""


@dataclass(frozen=True)
class Pair:
    """A picture and its mask.

    Attributes:
        name: unique in the split.
        image: file of the picture.
        mask: file of the mask.
    """

    name: str
    image: Path
    mask: Path


def paired(images: Path, masks: Path) -> list[Pair]:
    """The pictures of a folder with the masks of another that have the same stems, by name.

    Raises:
        DataCorrupt: a file has no partner, or two files have one stem.
    """
    pictures, labels = _by_stem(images), _by_stem(masks)
    for stems, lacking, what in (
        (pictures.keys() - labels.keys(), masks, "no mask"),
        (labels.keys() - pictures.keys(), images, "no picture"),
    ):
        if stems:
            raise DataCorrupt(f"{masks.parent}: {lacking} holds {what} for {_listed(stems)}")
    return [Pair(stem, pictures[stem], labels[stem]) for stem in sorted(pictures)]


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
            continue
        if path.stem in found:
            raise DataCorrupt(
                f"{folder} holds both {found[path.stem].name} and {path.name}; remove one"
            )
        found[path.stem] = path
    return found


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
