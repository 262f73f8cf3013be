"""Made-up frames for smoke runs and tests: no file is needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from domains.common.seeds import derive
from domains.pointcloud.frames import Cloud, parse
from domains.pointcloud.lidar import random_scene, scan
from domains.pointcloud.sources import FoundSet

FRAMES = {"train": 4, "val": 1}
AZIMUTHS = 12
"""Firings of a turn: 384 points a frame instead of about 34,700."""


@dataclass(frozen=True)
class MadeFrame:
    """A frame in memory, as its two files would hold it."""

    name: str
    points: bytes
    labels: bytes

    def read(self) -> Cloud:
        return parse(self.points, self.labels, f"{self.name}.pcd.bin", f"{self.name}_lidarseg.bin")


def made_frame(name: str, azimuths: int) -> MadeFrame:
    """A scan of a random street; the name decides which."""
    rng = np.random.default_rng(derive(0, "street", name))
    points, categories = scan(random_scene(rng), azimuths, rng)
    return MadeFrame(name, points.astype("<f4").tobytes(), categories.tobytes())


def tiny_set() -> FoundSet:
    """Frames of true form, fewer and thinner."""
    splits = {
        split: [made_frame(f"{split}{number}", AZIMUTHS) for number in range(count)]
        for split, count in FRAMES.items()
    }
    digest = hashlib.sha256()
    for frames in splits.values():
        for frame in frames:
            digest.update(frame.points + frame.labels)
    return FoundSet(
        splits=splits,
        kind="synthetic",
        source="made-up streets, scanned by 32 beams",
        fingerprint=f"sha256:{digest.hexdigest()}",
    )
