"""What loaders give and models take.

Shapes: N points that the grid kept, of B scenes; M points of the files.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

IGNORED = -1
"""Label of points that neither train nor count."""


@dataclass
class Batch:
    """Scenes laid end to end.

    Attributes:
        coord: (N, 3) float32, metres.
        grid: (N, 3) int64 voxel of each point, at least 0, counted from the scene's own corner.
        feat: (N, 4) float32: coordinates in metres, intensity from 0 to 1.
        label: (N,) int64 class, or `IGNORED`.
        batch: (N,) int64 scene of each point, rising.
        offset: (B,) int64 end of each scene.
        inverse: (M,) int64 kept point that stands for each point of the files; None in training.
        full_label: (M,) int64 class of each point of the files; None in training.
        split: `train` or `val`.
    """

    coord: Tensor
    grid: Tensor
    feat: Tensor
    label: Tensor
    batch: Tensor
    offset: Tensor
    inverse: Tensor | None
    full_label: Tensor | None
    split: str


@dataclass
class AugmentedScene:
    """One scene in all augmentations, each cut so that every point stands in some part.

    Attributes:
        parts: one scene each, with at most one point a voxel; their labels, `inverse` and
            `full_label` are not read.
        points: for each part, (N,) int64 thinned point that its points are.
        num_points: number of thinned points.
        inverse: (M,) int64 thinned point that stands for each point of the file.
        full_label: (M,) int64 class of each point of the file.
        split: `val`.
    """

    parts: list[Batch]
    points: list[Tensor]
    num_points: int
    inverse: Tensor
    full_label: Tensor
    split: str
