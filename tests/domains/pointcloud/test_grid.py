"""Cells, the point that is kept of each, and fragments, against loops over points."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from domains.pointcloud import grid


def cloud(number: int, seed: int = 0, width: float = 0.4) -> torch.Tensor:
    """Points around the origin, several in a cell of 5 cm."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(number, 3, generator=generator) - 0.5) * width


def by_cell(coord: torch.Tensor, size: float) -> dict[tuple[int, ...], list[int]]:
    """Points of every cell, by a loop."""
    found = defaultdict(list)
    for number, point in enumerate(coord.tolist()):
        found[tuple(math.floor(value / size) for value in point)].append(number)
    corner = [min(cell[axis] for cell in found) for axis in range(3)]
    return {
        tuple(value - low for value, low in zip(cell, corner, strict=True)): points
        for cell, points in found.items()
    }


@pytest.mark.parametrize("size", [0.05, 0.025, 0.3])
def test_cells_are_those_of_a_loop(size):
    coord = cloud(500)
    expected = torch.zeros(500, 3, dtype=torch.int64)
    for cell, points in by_cell(coord, size).items():
        expected[points] = torch.tensor(cell)
    assert torch.equal(grid.cells(coord, size), expected)
    assert expected.amin(0).tolist() == [0, 0, 0]


def test_negative_coordinates_are_rounded_down():
    coord = torch.tensor([[-0.01, 0.0, 0.0], [0.01, 0.0, 0.0]])
    assert grid.cells(coord, 0.05)[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("x", [0.35, 104.95])
def test_points_just_below_a_border_keep_their_cells(x):
    """The nearest float32 lies below the border, but its quotient in single precision does not."""
    coord = torch.tensor([[x, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert grid.cells(coord, 0.05)[0, 0] == math.floor(coord[0, 0].item() / 0.05)
    assert torch.floor(coord[0, 0] / 0.05) == grid.cells(coord, 0.05)[0, 0] + 1


@pytest.mark.parametrize("number", [1, 2, 700])
def test_one_point_of_every_cell_is_kept(number):
    coord = cloud(number)
    cells = by_cell(coord, 0.05)
    kept = grid.sample(coord, 0.05, torch.Generator().manual_seed(3))
    assert len(kept.index) == len(cells)
    assert sorted(map(tuple, kept.grid.tolist())) == sorted(cells)
    for point, cell in zip(kept.index.tolist(), kept.grid.tolist(), strict=True):
        assert point in cells[tuple(cell)]
    # Every point is stood for by the one that was kept of its own cell.
    assert torch.equal(kept.grid[kept.inverse], grid.cells(coord, 0.05))


def test_all_points_of_a_cell_are_kept_equally_often():
    coord = torch.tensor([[0.01, 0.01, 0.01]]).repeat(3, 1) + torch.arange(3)[:, None] * 0.01
    generator = torch.Generator().manual_seed(0)
    draws = torch.cat([grid.sample(coord, 0.05, generator).index for _ in range(3000)])
    assert torch.bincount(draws, minlength=3).tolist() == pytest.approx([1000] * 3, abs=100)


def test_a_seed_decides_which_points_are_kept():
    coord = cloud(700)
    first, again, other = (
        grid.sample(coord, 0.1, torch.Generator().manual_seed(seed)).index for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@given(st.integers(1, 60), st.integers(0, 10_000))
def test_fragments_cover_every_point_and_hold_one_of_each_cell(number, seed):
    coord = cloud(number, seed, width=0.2)
    cell = grid.cells(coord, 0.05)
    cells = by_cell(coord, 0.05)
    fragments = list(grid.fragments(cell))
    assert len(fragments) == max(len(points) for points in cells.values())
    assert set(torch.cat(fragments).tolist()) == set(range(number))
    for turn, fragment in enumerate(fragments):
        assert len(fragment) == len(cells)
        # As Pointcept's: a cell with fewer points begins again.
        assert set(fragment.tolist()) == {points[turn % len(points)] for points in cells.values()}


def test_a_cloud_in_other_units_is_refused():
    coord = torch.tensor([[0.0, 0.0, 0.0], [150_000.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"3,000,001 cells of 0\.05 m .* in metres\?"):
        grid.cells(coord, 0.05)


def test_a_real_frame_at_5_cm(data_dir):
    import numpy as np

    path = data_dir / "lidar/nuscenes/samples/LIDAR_TOP/frame10.pcd.bin"
    coord = torch.from_numpy(np.fromfile(path, np.float32).reshape(-1, 5)[:, :3].copy())
    kept = grid.sample(coord, 0.05, torch.Generator().manual_seed(0))
    unique = np.unique(np.floor(coord.numpy().astype(np.float64) / 0.05), axis=0)
    assert len(kept.index) == len(unique)
