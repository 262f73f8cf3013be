"""Frames on disk: classes, values, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.contract import DataCorrupt
from domains.pointcloud.batch import IGNORED
from domains.pointcloud.classes import MEMBERS, NAMES, TABLE, to_classes
from domains.pointcloud.config import CLASSES
from domains.pointcloud.frames import FrameFiles

POINTCEPT = {
    2: 6, 3: 6, 4: 6, 6: 6, 9: 0, 12: 7, 14: 1, 15: 2, 16: 2, 17: 3, 18: 4, 21: 5, 22: 8, 23: 9,
    24: 10, 25: 11, 26: 12, 27: 13, 28: 14, 30: 15,
}  # fmt: skip
"""`get_learning_map` in `pointcept/datasets/nuscenes.py` of Pointcept/Pointcept at d74c646; what is
not in it is ignored there."""


def test_categories_fall_into_classes_as_in_pointcept():
    assert TABLE.tolist() == [POINTCEPT.get(category, IGNORED) for category in range(32)]
    assert len(NAMES) == len(MEMBERS) == CLASSES
    assert NAMES[6] == "pedestrian"
    assert NAMES[15] == "vegetation"


def test_labels_become_int64():
    classes = to_classes(np.array([17, 0, 31, 30], dtype=np.uint8))
    assert classes.dtype == np.int64
    assert classes.tolist() == [3, -1, -1, 15]


@pytest.fixture
def frame(tmp_path: Path) -> FrameFiles:
    """Three points with known values."""
    files = FrameFiles(tmp_path / "a.pcd.bin", tmp_path / "a_lidarseg.bin")
    points = np.array(
        [[1.5, -2.0, 0.25, 255.0, 0.0], [3.0, 4.0, -1.0, 51.0, 1.0], [0.0, 0.0, 9.0, 0.0, 31.0]]
    )
    files.points.write_bytes(points.astype("<f4").tobytes())
    files.labels.write_bytes(bytes([17, 24, 31]))
    return files


def test_values_of_a_frame(frame):
    cloud = frame.read()
    assert cloud.coord.tolist() == [[1.5, -2.0, 0.25], [3.0, 4.0, -1.0], [0.0, 0.0, 9.0]]
    assert cloud.coord.dtype == cloud.intensity.dtype == np.float32
    np.testing.assert_allclose(cloud.intensity, [1.0, 0.2, 0.0], rtol=1e-7)
    assert cloud.label.tolist() == [3, 10, -1]


def replace(path: Path, change: str) -> None:
    content = path.read_bytes()
    if change == "gone":
        path.unlink()
        return
    if change in ("nan", "infinity"):
        values = np.frombuffer(content, "<f4").copy()
        values[6] = np.nan if change == "nan" else -np.inf
        path.write_bytes(values.tobytes())
        return
    path.write_bytes(
        {
            "cut": content[:-3],
            "a point less": content[:-20],
            "a label less": content[:-1],
            "empty": b"",
            "other labels": bytes([17, 200, 3]),
        }[change]
    )


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("points", "cut", r"a\.pcd\.bin has 57 bytes, which is no positive multiple of 20"),
        ("points", "empty", r"a\.pcd\.bin has 0 bytes"),
        ("points", "a point less", r"a_lidarseg\.bin has 3 labels .* for the 2 points of .*a\.pcd"),
        ("labels", "a label less", r"a_lidarseg\.bin has 2 labels .* for the 3 points"),
        ("labels", "empty", "has 0 labels"),
        ("points", "nan", r"a\.pcd\.bin: 1 of 3 points hold NaN .* the first is point 1"),
        ("points", "infinity", "1 of 3 points hold NaN or infinity"),
        ("labels", "other labels", r"a_lidarseg\.bin holds the label 200; allowed .* 0 to 31"),
        ("points", "gone", r"a\.pcd\.bin cannot be read"),
        ("labels", "gone", r"a_lidarseg\.bin cannot be read"),
    ],
)
def test_damage_is_named(frame, file, change, message):
    replace(getattr(frame, file), change)
    with pytest.raises(DataCorrupt, match=message):
        frame.read()


def test_real_frames(data_dir):
    root = data_dir / "lidar/nuscenes"
    counts = np.zeros(CLASSES + 1, dtype=np.int64)
    for number in range(20):
        cloud = FrameFiles(
            root / f"samples/LIDAR_TOP/frame{number:02d}.pcd.bin",
            root / f"lidarseg/v1.0-mini/frame{number:02d}_lidarseg.bin",
        ).read()
        assert len(cloud.coord) in (34688, 34720, 34752, 34784)
        assert np.abs(cloud.coord).max() < 110.0
        assert 0.0 <= cloud.intensity.min() <= cloud.intensity.max() <= 1.0
        counts += np.bincount(cloud.label + 1, minlength=CLASSES + 1)
    # Counted over all frames by an independent script.
    assert counts.tolist() == [
        177873, 0, 0, 0, 1302, 6, 0, 898, 57, 0, 37743, 202437, 9, 27722, 112296, 74814, 59147,
    ]  # fmt: skip
