"""Frames as tensors: thinned to a grid, laid end to end, and cut into the parts of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from domains.pointcloud import grid
from domains.pointcloud.batch import IGNORED, AugmentedScene, Batch
from domains.pointcloud.frames import Frame
from domains.pointcloud.transforms import VIEWS, view

FINE_GRID = 0.025
"""Edge of the cells that test frames are thinned to before they are viewed, m."""


class Points(NamedTuple):
    """A frame as tensors.

    Attributes:
        coord: (M, 3) float32, m.
        intensity: (M, 1) float32 from 0 to 1.
        label: (M,) int64.
    """

    coord: Tensor
    intensity: Tensor
    label: Tensor


def read(frame: Frame) -> Points:
    """Read a frame."""
    cloud = frame.read()
    coord, intensity, label = map(torch.from_numpy, (cloud.coord, cloud.intensity, cloud.label))
    return Points(coord, intensity[:, None], label)


class Thinned(NamedTuple):
    """What the grid keeps of a frame.

    Attributes:
        coord: (N, 3) float32, m.
        grid: (N, 3) int64.
        intensity: (N, 1) float32.
        label: (N,) int64.
        inverse: (M,) int64, the kept point that stands for each point of the frame.
        full_label: (M,) int64.
    """

    coord: Tensor
    grid: Tensor
    intensity: Tensor
    label: Tensor
    inverse: Tensor
    full_label: Tensor


def thin(points: Points, size: float, generator: torch.Generator) -> Thinned:
    """Keep one random point of every occupied cell of `size` metres."""
    kept = grid.sample(points.coord, size, generator)
    coord, intensity, label = (values.index_select(0, kept.index) for values in points)
    return Thinned(coord, kept.grid, intensity, label, kept.inverse, points.label)


def collate(scenes: Sequence[Thinned], split: str, *, mixed: bool = False) -> Batch:
    """Lay scenes end to end.

    Args:
        scenes: at least one.
        split: `train`, where no point of the files is to be mapped back to, or `val`.
        mixed: make one scene of each pair of neighbours (Mix3D); an odd one stays. The cells of
            both keep counting from their own corner, so that two points may share one.

    Source: `point_collate_fn` in `pointcept/datasets/utils.py` of Pointcept/Pointcept at d74c646;
    Nekrasov et al. 2021, arXiv 2110.02210.
    """
    sizes = torch.tensor([len(scene.coord) for scene in scenes])
    ends = sizes.cumsum(0)
    offset = torch.cat([ends[1:-1:2], ends[-1:]]) if mixed else ends
    coord = torch.cat([scene.coord for scene in scenes])
    evaluated = split != "train"
    starts = (ends - sizes).tolist()
    return Batch(
        coord=coord,
        grid=torch.cat([scene.grid for scene in scenes]),
        feat=torch.cat([coord, torch.cat([scene.intensity for scene in scenes])], dim=1),
        label=torch.cat([scene.label for scene in scenes]),
        batch=torch.repeat_interleave(offset.diff(prepend=offset.new_zeros(1))),
        offset=offset,
        inverse=torch.cat([s.inverse + start for s, start in zip(scenes, starts, strict=True)])
        if evaluated
        else None,
        full_label=torch.cat([scene.full_label for scene in scenes]) if evaluated else None,
        split=split,
    )


def augmented(
    points: Points,
    grid_size: float,
    generator: torch.Generator,
    views: Sequence[tuple[float, bool]] = VIEWS,
) -> AugmentedScene:
    """A test frame in all views, each cut into parts with at most one point a cell.

    Args:
        points: of the frame.
        grid_size: edge of a cell of the parts, m.
        generator: which point of a fine cell is kept.
        views: scale, and whether x and y are mirrored, of each.

    Source: `configs/nuscenes/semseg-pt-v3m1-0-base.py` and `pointcept/engines/test.py` of
    Pointcept/Pointcept at d74c646.
    """
    fine = thin(points, FINE_GRID, generator)
    parts: list[Batch] = []
    rows: list[Tensor] = []
    for scale, mirrored in views:
        coord = view(fine.coord, scale, mirrored)
        cell = grid.cells(coord, grid_size)
        for row in grid.fragments(cell):
            parts.append(_part(coord[row], cell[row], fine.intensity[row]))
            rows.append(row)
    return AugmentedScene(
        parts=parts,
        points=rows,
        num_points=len(fine.coord),
        inverse=fine.inverse,
        full_label=fine.full_label,
        split="val",
    )


def _part(coord: Tensor, cell: Tensor, intensity: Tensor) -> Batch:
    number = len(coord)
    return Batch(
        coord=coord,
        grid=cell,
        feat=torch.cat([coord, intensity], dim=1),
        label=torch.full((number,), IGNORED),
        batch=torch.zeros(number, dtype=torch.int64),
        offset=torch.tensor([number]),
        inverse=None,
        full_label=None,
        split="val",
    )
