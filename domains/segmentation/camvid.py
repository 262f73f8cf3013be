"""Pairs from text files as CamVid has them: a picture and its mask a line."""

from __future__ import annotations

from pathlib import Path

from domains.contract import DataCorrupt
from domains.segmentation.folders import Pair


def listed(file: Path) -> list[Pair]:
    """The pairs of a list, in its order.

    The paths of CamVid's own lists begin with the folder of their author's machine
    (`/SegNet/CamVid/train/…`): leading folders are left out until the file is there, below the
    folder of the list.

    Raises:
        DataCorrupt: a line is no pair, names a file that is not there, or repeats a picture.
    """
    pairs: dict[str, Pair] = {}
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2:
            raise DataCorrupt(f"{file}, line {number}: '{line}' is not a picture and its mask")
        image, mask = (_resolved(word, file, number) for word in words)
        if image.stem in pairs:
            raise DataCorrupt(f"{file}, line {number}: {image.stem} is there a second time")
        pairs[image.stem] = Pair(image.stem, image, mask)
    if not pairs:
        raise DataCorrupt(f"{file} names no pictures")
    return list(pairs.values())


def _resolved(path: str, file: Path, number: int) -> Path:
    parts = [part for part in Path(path).parts if part not in ("/", "..")]
    for first in range(len(parts)):
        candidate = file.parent.joinpath(*parts[first:])
        if candidate.is_file():
            return candidate
    raise DataCorrupt(f"{file}, line {number}: {path} is not below {file.parent}")
