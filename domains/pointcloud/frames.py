"""A LiDAR frame on disk: points and labels, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from domains.contract import DataCorrupt
from domains.pointcloud.classes import CATEGORIES, to_classes

COLUMNS = 5
"""Numbers a point: x, y, z (m, sensor frame), intensity (0 to 255), ring (0 to 31)."""

POINT_BYTES = COLUMNS * np.dtype("<f4").itemsize
BRIGHTEST = 255.0
"""Largest intensity."""


@dataclass(frozen=True)
class Cloud:
    """Points of one frame.

    Attributes:
        coord: (N, 3) float32, m.
        intensity: (N,) float32 in [0, 1].
        label: (N,) int64, class from 0, or -1 for ignored points.
    """

    coord: NDArray[np.float32]
    intensity: NDArray[np.float32]
    label: NDArray[np.int64]


class Frame(Protocol):
    """Something that a cloud can be read from."""

    def read(self) -> Cloud: ...


@dataclass(frozen=True)
class FrameFiles:
    """The two files of a frame.

    Attributes:
        points: float32 (N, 5), little endian, see :data:`COLUMNS`.
        labels: uint8 (N,), nuScenes-lidarseg's categories.
    """

    points: Path
    labels: Path

    def read(self) -> Cloud:
        """Read and check both files.

        Raises:
            DataCorrupt: a file is missing, empty or truncated, the two do not belong together,
                points are not finite, or a label is no category.
        """
        points, labels = _content(self.points), _content(self.labels)
        return parse(points, labels, str(self.points), str(self.labels))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataCorrupt(f"{path} cannot be read: {error}") from error


def refuse_sizes(points: int, labels: int, points_name: str, labels_name: str) -> None:
    """Raise a DataCorrupt unless two files of these sizes in bytes can be a frame."""
    if points == 0 or points % POINT_BYTES:
        raise DataCorrupt(
            f"{points_name} has {points:,} bytes, which is no positive multiple of {POINT_BYTES} "
            "(x, y, z, intensity and ring as float32): it is truncated or of another format"
        )
    if labels != points // POINT_BYTES:
        raise DataCorrupt(
            f"{labels_name} has {labels:,} labels (one byte each) for the "
            f"{points // POINT_BYTES:,} points of {points_name}: one of them is truncated, or they "
            "belong to different frames"
        )


def parse(points: bytes, labels: bytes, points_name: str, labels_name: str) -> Cloud:
    """A cloud from the contents of its two files.

    Raises:
        DataCorrupt: see :meth:`FrameFiles.read`.
    """
    refuse_sizes(len(points), len(labels), points_name, labels_name)
    values = np.frombuffer(points, dtype="<f4").reshape(-1, COLUMNS)
    # All at once first: row by row takes ten times as long.
    if not np.isfinite(values).all():
        finite = np.isfinite(values).all(axis=1)
        raise DataCorrupt(
            f"{points_name}: {np.count_nonzero(~finite):,} of {len(values):,} points hold NaN or "
            f"infinity, the first is point {int(np.argmin(finite))}"
        )
    categories = np.frombuffer(labels, dtype=np.uint8)
    if (largest := int(categories.max())) >= CATEGORIES:
        raise DataCorrupt(
            f"{labels_name} holds the label {largest}; allowed are nuScenes-lidarseg's categories "
            f"0 to {CATEGORIES - 1}, one byte a point"
        )
    return Cloud(
        coord=np.ascontiguousarray(values[:, :3], dtype=np.float32),
        intensity=values[:, 3].astype(np.float32) / np.float32(BRIGHTEST),
        label=to_classes(categories),
    )
