"""Where frames are found, how they are listed, and what is said when something lacks."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from domains.contract import DataCorrupt, DataUnavailable
from domains.pointcloud import nuscenes, sources
from domains.pointcloud.config import DatasetConfig
from domains.pointcloud.nuscenes import TABLES

from .files import (
    TRAIN_SCENE,
    VAL_SCENE,
    frame_of,
    info,
    relative,
    write_cloud,
    write_infos,
    write_tables,
)

CONF = Path(__file__).parents[3] / "conf" / "dataset" / "pointcloud"
SCENES = [TRAIN_SCENE, VAL_SCENE, TRAIN_SCENE, TRAIN_SCENE, VAL_SCENE]


def described(name: str) -> DatasetConfig:
    return DatasetConfig(**yaml.safe_load((CONF / f"{name}.yaml").read_text()))


def small(**options: Any) -> DatasetConfig:
    """nuScenes with three training and two validation frames."""
    return DatasetConfig(**{"train": 3, "val": 2, **options})


def folder(**options: Any) -> DatasetConfig:
    made = {"name": "made", "layout": "folder", "folder": "made", "train": 3, "val": 2}
    return DatasetConfig(**{**made, **options})


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """An empty DATA_DIR."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def names(found: sources.FoundSet, root: Path) -> dict[str, list[str]]:
    return {
        split: [frame.points.relative_to(root).as_posix() for frame in frames]
        for split, frames in found.splits.items()
    }


def points(*numbers: int) -> list[str]:
    return [relative(Path(), number)[0] for number in numbers]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_configurations_are_complete(name):
    config = described(name)
    assert config.name == name
    assert config.source
    assert "non-commercial" in config.licence


def test_the_published_numbers_of_frames():
    config = described("nuscenes")
    assert {"train": config.train, "val": config.val} == sources.PUBLISHED
    assert sources.PUBLISHED == {"train": 28_130, "val": 6_019}


def test_the_official_split_has_150_validation_scenes():
    scenes = nuscenes.validation_scenes()
    assert len(scenes) == 150
    assert {"scene-0003", "scene-0103", "scene-0916", "scene-1073"} <= scenes
    assert not {"scene-0001", "scene-0037", "scene-0918", "scene-1074"} & scenes


@pytest.mark.parametrize("place", ["nuscenes", "lidar/nuscenes"])
def test_tables_list_the_key_frames_of_both_splits(data, place):
    write_tables(data / place, SCENES)
    config = small()
    assert sources.require(config).description == f"DATA_DIR: {place}, listed by {TABLES}"
    found = sources.load(config)
    assert names(found, data / place) == {"train": points(0, 2, 3), "val": points(1, 4)}
    for split, number in (("train", 0), ("val", 1)):
        cloud = found.splits[split][0].read()
        expected = frame_of(data / place, number).read()
        assert (cloud.coord == expected.coord).all()
        assert (cloud.label == expected.label).all()


def test_tables_are_read_in_small_pieces(data, monkeypatch):
    monkeypatch.setattr(nuscenes, "CHUNK", 7)
    write_tables(data / "nuscenes", SCENES)
    listing = nuscenes.list_frames(data / "nuscenes")
    assert [len(listing[split]) for split in ("train", "val")] == [3, 2]


@pytest.mark.parametrize("current", [True, False])
def test_info_files_of_pointcept_list_the_same_frames(data, current):
    root = data / "nuscenes"
    write_infos(root, 3, 2, current=current)
    found = sources.load(small())
    raw = root / "raw" if current else root
    assert names(found, raw) == {"train": points(0, 1, 2), "val": points(3, 4)}
    found.splits["val"][1].read()
    assert "listed by nuscenes_infos_" in found.source


def test_tables_come_before_info_files(data):
    write_infos(data / "a" / "nuscenes", 3, 2)
    write_tables(data / "b" / "nuscenes", SCENES)
    assert sources.load(small()).source == f"DATA_DIR: b/nuscenes, listed by {TABLES}"


@pytest.mark.parametrize("made", [write_tables, write_infos])
def test_only_the_published_numbers_make_it_real(data, made, monkeypatch):
    root = data / "nuscenes"
    write_tables(root, SCENES) if made is write_tables else write_infos(root, 3, 2)
    assert sources.require(small()).kind == sources.load(small()).kind == "sample"
    monkeypatch.setattr(sources, "PUBLISHED", {"train": 3, "val": 2})
    assert sources.require(small()).kind == sources.load(small()).kind == "real"
    for train, val in ((4, 2), (3, 1)):
        with pytest.raises(DataCorrupt, match=r"key frames in (train|val), expected"):
            sources.load(small(train=train, val=val))


def test_without_files_it_is_said_that_a_registration_is_needed(data):
    config = described("nuscenes")
    for attempt in (sources.require, sources.load):
        with pytest.raises(DataUnavailable) as error:
            attempt(config)
        message = str(error.value)
        assert "needs a registration" in message
        assert "nuScenes-lidarseg-all-v1.0" in message
        assert f"folder nuscenes/ and put it anywhere under DATA_DIR (now {data})" in message
        assert "info/nuscenes_infos_10sweeps_{train,val}.pkl" in message


def test_the_archive_of_labels_is_missed(data):
    """`Table lidarseg not found`: it is an archive of its own."""
    root = data / "nuscenes"
    write_tables(root, SCENES)
    (root / TABLES / "lidarseg.json").unlink()
    with pytest.raises(DataUnavailable) as error:
        sources.require(small())
    assert f"DATA_DIR: nuscenes lacks {TABLES}/lidarseg.json" in str(error.value)
    assert "scene.json" not in str(error.value)


def test_all_missing_files_are_counted_at_once(data):
    root = data / "nuscenes"
    write_tables(root, SCENES)
    frame_of(root, 1).points.unlink()
    frame_of(root, 4).labels.unlink()
    with pytest.raises(DataUnavailable, match=r"2 of 10 files of nuscenes are not in .*__1\.pcd"):
        sources.load(small())


def test_a_truncated_sweep_is_found_before_training(data):
    root = data / "nuscenes"
    write_tables(root, SCENES)
    path = frame_of(root, 3).points
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataCorrupt, match=r"__3\.pcd\.bin has 113 bytes"):
        sources.load(small())


def test_files_are_looked_at_once(data, monkeypatch):
    write_tables(data / "nuscenes", SCENES)
    first = sources.load(small())
    monkeypatch.setattr(sources, "_size", lambda path: pytest.fail("looked at again"))
    again = sources.load(small())
    assert again.splits == first.splits
    assert again.fingerprint == first.fingerprint


def test_another_list_has_another_fingerprint(data):
    write_tables(data / "a" / "nuscenes", SCENES)
    before = sources.load(small()).fingerprint
    write_cloud(frame_of(data / "a" / "nuscenes", 0), count=7)
    table = data / "a" / "nuscenes" / TABLES / "scene.json"
    table.write_text(table.read_text() + "\n")
    assert sources.load(small()).fingerprint != before


def damage(root: Path, fault: str) -> None:
    table = root / TABLES / "sample_data.json"
    text = table.read_text()
    rows = json.loads(text)
    if fault == "cut":
        table.write_text(text[: len(text) // 2])
    elif fault == "no list":
        table.write_text("{}")
    elif fault == "no token":
        table.write_text(json.dumps([{"filename": "samples/LIDAR_TOP/a.pcd.bin"}]))
    elif fault == "other release":
        table.write_text(json.dumps([row for row in rows if row["sample_token"] != "sample2"]))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", r"sample_data\.json is damaged or ends early"),
        ("no list", r"sample_data\.json is no table of nuScenes"),
        ("no token", r"sample_data\.json: a record without token, sample_token, filename"),
        ("other release", "sample sample2 leads to 'sample2', which the tables do not hold"),
    ],
)
def test_damaged_tables_are_named(data, fault, message):
    write_tables(data / "nuscenes", SCENES)
    damage(data / "nuscenes", fault)
    with pytest.raises(DataCorrupt, match=message):
        sources.load(small())


class Trap:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("fault", ["code", "no labels", "no list", "cut"])
def test_damaged_info_files_are_named(data, tmp_path, fault):
    root = data / "nuscenes"
    write_infos(root, 3, 2)
    path = root / "info" / "nuscenes_infos_10sweeps_val.pkl"
    test = [{key: value for key, value in info(root, 3).items() if key != "gt_segment_path"}]
    content, message = {
        "code": (pickle.dumps([Trap(f"touch {tmp_path / 'ran'}")]), "which is not allowed"),
        "no labels": (pickle.dumps(test), "1 of 1 frames have no gt_segment_path: the test split"),
        "no list": (pickle.dumps({"infos": []}), "is no info file of Pointcept"),
        "cut": (path.read_bytes()[:40], "no pickle file of arrays"),
    }[fault]
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=message):
        sources.load(small())
    assert not (tmp_path / "ran").exists()


def write_folder(root: Path, count: int, *, nested: bool = True) -> Path:
    from domains.pointcloud.frames import FrameFiles

    for number in range(count):
        frame = FrameFiles(
            root / ("samples/LIDAR_TOP" if nested else "") / f"frame{number:02d}.pcd.bin",
            root / ("lidarseg/any" if nested else "") / f"frame{number:02d}_lidarseg.bin",
        )
        write_cloud(frame, seed=number)
    return root


@pytest.mark.parametrize("nested", [True, False])
def test_the_last_frames_of_a_folder_validate(data, nested):
    write_folder(data / "x" / "made", 5, nested=nested)
    source = sources.require(folder())
    assert (source.kind, source.description) == ("sample", "DATA_DIR: x/made")
    found = sources.load(folder())
    stems = {split: [f.points.name[:7] for f in frames] for split, frames in found.splits.items()}
    assert stems == {"train": ["frame00", "frame01", "frame02"], "val": ["frame03", "frame04"]}
    assert found.kind == "sample"
    assert "optimistic" in found.notes[0]
    assert found.splits["val"][0].read().label.shape == (6,)


def test_the_fingerprint_of_a_folder_covers_contents_and_split(data):
    root = write_folder(data / "made", 5)
    before = sources.load(folder())
    other_split = sources.load(folder(train=4, val=1))
    labels = before.splits["val"][0].labels
    labels.write_bytes(bytes([5]) + labels.read_bytes()[1:])
    changed = sources.load(folder())
    assert len({before.fingerprint, other_split.fingerprint, changed.fingerprint}) == 3
    assert root.name == "made"


def test_a_folder_with_other_numbers_of_frames_is_refused(data):
    write_folder(data / "made", 4)
    (data / "made" / "samples/LIDAR_TOP/alone.pcd.bin").write_bytes(b"")
    for attempt in (sources.require, sources.load):
        with pytest.raises(DataUnavailable) as error:
            attempt(folder())
        message = str(error.value)
        assert "with 5 frames (dataset.train=3 and dataset.val=2)" in message
        assert "DATA_DIR: made has 4" in message


def test_the_sample_frames_are_one_drive_of_twenty(data_dir):
    config = described("nuscenes_folder")
    assert sources.require(config).kind == "sample"
    found = sources.load(config)
    assert [len(found.splits[split]) for split in ("train", "val")] == [16, 4]
    assert found.splits["val"][-1].points.name == "frame19.pcd.bin"
    assert found.splits["val"][-1].labels.name == "frame19_lidarseg.bin"
    with pytest.raises(DataUnavailable, match="needs a registration"):
        sources.require(described("nuscenes"))
