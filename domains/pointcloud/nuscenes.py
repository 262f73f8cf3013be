"""The key frames of nuScenes-lidarseg, listed by the tables that come with the data set.

The tables are read as they are; the devkit is not needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from domains.contract import DataCorrupt

TABLES = "v1.0-trainval"
"""Folder of the tables."""

NEEDED = ("scene.json", "sample.json", "sample_data.json", "lidarseg.json")
"""Tables that are read; `lidarseg.json` comes with the archive of the labels."""

SWEEPS = "samples/LIDAR_TOP/"
"""Where the key frames of the LiDAR are."""

Listing = dict[str, list[tuple[str, str]]]
"""By split, the points file and the labels file of each frame, relative to the set's folder."""

VALIDATION = (
    "3 12-18 35-36 38-39 92-110 221 268-278 329-332 344-346 519-524 552-565 625-627 629-630 "
    "632-638 770-771 775 777-778 780-784 794-800 802 904-917 919-931 962-963 966-969 971-972 "
    "1059-1073"
)
"""Numbers of the 150 validation scenes; the other 700 of the tables are trained on.

Source: `python-sdk/nuscenes/utils/splits.py` of nutonomy/nuscenes-devkit.
"""


def validation_scenes() -> frozenset[str]:
    """Names of the validation scenes (`scene-0003`)."""
    numbers: list[int] = []
    for span in VALIDATION.split():
        first, _, last = span.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return frozenset(f"scene-{number:04d}" for number in numbers)


def lacking(root: Path) -> list[str]:
    """Tables that are not in the set's folder."""
    return [name for name in NEEDED if not os.path.isfile(root / TABLES / name)]


def list_frames(root: Path) -> Listing:
    """The key frames of both splits, in the order of the table of samples.

    Raises:
        DataCorrupt: a table is damaged, or the tables do not belong together.
    """
    tables = root / TABLES
    scenes = {row["token"]: row["name"] for row in records(tables / "scene.json", "token", "name")}
    scene_of = {
        row["token"]: row["scene_token"]
        for row in records(tables / "sample.json", "token", "scene_token")
    }
    labels = {
        row["sample_data_token"]: row["filename"]
        for row in records(tables / "lidarseg.json", "sample_data_token", "filename")
    }
    points: dict[str, tuple[str, str]] = {}
    for row in records(tables / "sample_data.json", "token", "sample_token", "filename"):
        if row["filename"].startswith(SWEEPS):
            points[row["sample_token"]] = row["filename"], row["token"]
    validation = validation_scenes()
    listing: Listing = {"train": [], "val": []}
    for sample, scene in scene_of.items():
        try:
            name = scenes[scene]
            file, token = points[sample]
            frame = file, labels[token]
        except KeyError as error:
            raise DataCorrupt(
                f"{tables}: sample {sample} leads to {error}, which the tables do not hold. Tables "
                f"of one release belong together ({', '.join(NEEDED)})"
            ) from error
        listing["val" if name in validation else "train"].append(frame)
    return listing


CHUNK = 1 << 20
"""Characters that are read of a table at a time."""

SPACE = re.compile(r"[\s,]*")


def records(path: Path, *keys: str) -> Iterator[Mapping[str, Any]]:
    """Records of a table, one at a time: `sample_data.json` has 2.6 million of them.

    Args:
        path: of a JSON file that is a list of objects.
        keys: that every record must have.

    Raises:
        DataCorrupt: it is not, or ends early.
    """
    decode = json.JSONDecoder().raw_decode
    with path.open(encoding="utf-8") as file:
        text = file.read(CHUNK).lstrip()
        if not text.startswith("["):
            raise DataCorrupt(f"{path} is no table of nuScenes: it does not begin with a list")
        at = 1
        while True:
            at = SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return
            try:
                record, at = decode(text, at)
            except ValueError as error:
                more = file.read(CHUNK)
                if not more:
                    raise DataCorrupt(f"{path} is damaged or ends early: {error}") from error
                text, at = text[at:] + more, 0
                continue
            if not isinstance(record, dict) or any(key not in record for key in keys):
                raise DataCorrupt(f"{path}: a record without {', '.join(keys)}: {record!r:.200}")
            yield record
