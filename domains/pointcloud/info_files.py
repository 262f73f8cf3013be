"""The key frames of nuScenes-lidarseg, listed by the info files that Pointcept prepares.

One pickle a split, a list with a dictionary for every key frame. Current versions write
`info/nuscenes_infos_10sweeps_train.pkl` beside a folder `raw`, older ones
`nuscenes_infos_train_10sweeps_withgt_seg.pkl`; the earlier sweeps in them are not read.

Source: `pointcept/datasets/preprocessing/nuscenes/preprocess_nuscenes_info.py` and
`pointcept/datasets/nuscenes.py` of Pointcept/Pointcept at d74c646.
"""

from __future__ import annotations

import os
from pathlib import Path

from domains.common.plain_pickle import read_pickle
from domains.contract import DataCorrupt
from domains.pointcloud.nuscenes import Listing

SPLITS = ("train", "val")
POINTS, LABELS = "lidar_path", "gt_segment_path"
"""Keys of a frame's files, relative to the folder of the raw data."""


def info_files(root: Path) -> dict[str, Path] | None:
    """The files of both splits in the set's folder or in `info/` there, None if one lacks."""
    for folder in (root / "info", root):
        if not os.path.isdir(folder):
            continue
        found: dict[str, Path] = {}
        for path in sorted(folder.glob("nuscenes_infos_*.pkl")):
            for split in SPLITS:
                if split in path.stem.split("_"):
                    found.setdefault(split, path)
        if len(found) == len(SPLITS):
            return found
    return None


def raw_folder(root: Path) -> Path:
    """Where the files lie that the info files name."""
    raw = root / "raw"
    return raw if os.path.isdir(raw) else root


def list_frames(files: dict[str, Path]) -> Listing:
    """The key frames of both splits, in the order of the files.

    Raises:
        DataCorrupt: a file is damaged, asks for something else than arrays, or has no labels.
    """
    return {split: _frames(path) for split, path in files.items()}


def _frames(path: Path) -> list[tuple[str, str]]:
    content = read_pickle(path)
    if not isinstance(content, list) or not all(isinstance(frame, dict) for frame in content):
        raise DataCorrupt(
            f"{path} is no info file of Pointcept, which is a list of dictionaries with "
            f"{POINTS} and {LABELS}"
        )
    for key, why in ((POINTS, ""), (LABELS, ": the test split has no public labels")):
        if lacks := sum(not isinstance(frame.get(key), str) for frame in content):
            raise DataCorrupt(f"{path}: {lacks:,} of {len(content):,} frames have no {key}{why}")
    return [(frame[POINTS], frame[LABELS]) for frame in content]
