"""Made-up copies of nuScenes, in its own layouts."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np

from domains.pointcloud.frames import FrameFiles
from domains.pointcloud.nuscenes import TABLES

VAL_SCENE, TRAIN_SCENE = "scene-0003", "scene-0001"


def write_cloud(frame: FrameFiles, count: int = 6, seed: int = 0) -> None:
    """Write a frame of random points with labels of all kinds."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-20.0, 20.0, size=(count, 5)).astype("<f4")
    points[:, 3] = rng.integers(0, 256, size=count)
    for path in (frame.points, frame.labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    frame.points.write_bytes(points.tobytes())
    frame.labels.write_bytes(rng.integers(0, 32, size=count).astype(np.uint8).tobytes())


def frame_of(root: Path, number: int) -> FrameFiles:
    """Files of a key frame as nuScenes names them: labels bear a token, not the sweep's name."""
    return FrameFiles(
        root / f"samples/LIDAR_TOP/n008__LIDAR_TOP__{number}.pcd.bin",
        root / f"lidarseg/{TABLES}/data{number}_lidarseg.bin",
    )


def relative(root: Path, number: int) -> tuple[str, str]:
    frame = frame_of(root, number)
    return frame.points.relative_to(root).as_posix(), frame.labels.relative_to(root).as_posix()


def write_tables(root: Path, scenes: list[str]) -> None:
    """Tables and files of one key frame for each name in `scenes`, and an earlier sweep of each."""
    unique = sorted(set(scenes))
    tables: dict[str, list[dict[str, object]]] = {
        "scene": [{"token": f"s{name}", "name": name} for name in unique],
        "sample": [],
        "sample_data": [],
        "lidarseg": [],
    }
    for number, scene in enumerate(scenes):
        points, labels = relative(root, number)
        write_cloud(frame_of(root, number), seed=number)
        sample, token = f"sample{number}", f"data{number}"
        tables["sample"].append({"token": sample, "scene_token": f"s{scene}"})
        sweep = {"sample_token": sample, "filename": points.replace("samples", "sweeps")}
        tables["sample_data"].append({"token": f"sweep{number}", **sweep})
        tables["sample_data"].append({"token": token, "sample_token": sample, "filename": points})
        camera = {"sample_token": sample, "filename": f"samples/CAM_FRONT/{number}.jpg"}
        tables["sample_data"].append({"token": f"camera{number}", **camera})
        tables["lidarseg"].append({"sample_data_token": token, "filename": labels})
    (root / TABLES).mkdir(parents=True)
    for name, rows in tables.items():
        text = json.dumps(rows, indent=0)
        (root / TABLES / f"{name}.json").write_text(text)


def info(root: Path, number: int) -> dict[str, object]:
    """What Pointcept's info files tell of a key frame, in parts."""
    points, labels = relative(root, number)
    return {
        "lidar_path": points,
        "lidar_token": f"data{number}",
        "gt_segment_path": labels,
        "ref_from_car": np.eye(4),
        "gt_names": np.array(["car", "ignore"]),
        "sweeps": [{"lidar_path": points, "transform_matrix": None, "time_lag": 0.0}],
    }


def write_infos(root: Path, train: int, val: int, *, current: bool = True) -> None:
    """Info files and frames in the layout that current or older versions of Pointcept write."""
    raw, folder = (root / "raw", root / "info") if current else (root, root)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(train + val):
        write_cloud(frame_of(raw, number), seed=number)
    for split, numbers in (("train", range(train)), ("val", range(train, train + val))):
        name = f"10sweeps_{split}" if current else f"{split}_10sweeps_withgt_seg"
        content = pickle.dumps([info(raw, number) for number in numbers])
        (folder / f"nuscenes_infos_{name}.pkl").write_bytes(content)
