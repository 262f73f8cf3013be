"""A plain folder of frames, `NAME.pcd.bin` with `NAME_lidarseg.bin`, split by their order."""

from __future__ import annotations

import os
from pathlib import Path

from domains.pointcloud.nuscenes import SWEEPS

POINTS, LABELS = ".pcd.bin", "_lidarseg.bin"


def pairs(root: Path) -> list[tuple[str, str]]:
    """Points and labels of every frame that has both, relative to the folder, sorted by name.

    Points lie in `samples/LIDAR_TOP/` or in the folder itself, labels beside them or in a folder
    of `lidarseg/`, as in nuScenes; there, however, label files bear other names.
    """
    points = _by_name(root, (root / SWEEPS, root), POINTS)
    labels = _by_name(root, (*_folders(root / "lidarseg"), root / SWEEPS, root), LABELS)
    return [(points[name], labels[name]) for name in sorted(points.keys() & labels.keys())]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*") if os.path.isdir(path))


def _by_name(root: Path, folders: tuple[Path, ...], ending: str) -> dict[str, str]:
    """Files with an ending, by what comes before it; the first folder that has some counts."""
    for folder in folders:
        if os.path.isdir(folder):
            found = {
                entry.name.removesuffix(ending): Path(entry.path).relative_to(root).as_posix()
                for entry in os.scandir(folder)
                if entry.name.endswith(ending) and entry.is_file()
            }
            if found:
                return found
    return {}


def split(frames: list[tuple[str, str]], val: int) -> dict[str, list[tuple[str, str]]]:
    """The last `val` frames validate: of a drive, those that are farthest from the others."""
    return {"train": frames[:-val], "val": frames[-val:]}
