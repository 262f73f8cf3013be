"""Points in the cells of a grid: one point a cell, or every point once in a series of fragments.

Pointcept (`pointcept/datasets/transform.py` at d74c646, `GridSample`) sorts cells by a hash; here
they are sorted by their place. Which points share a cell is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 2**21
"""Cells along an axis that a key has room for."""


def cells(coord: Tensor, size: float) -> Tensor:
    """Cells of points, counted from the lowest occupied one on each axis.

    Args:
        coord: (N, 3) float32, m; N at least 1.
        size: edge of a cell, m.

    Returns:
        (N, 3) int64, at least 0.

    Raises:
        ValueError: the cloud is more than `LIMIT` cells wide.
    """
    # In double precision: a quotient in single may be rounded up over the border of a cell.
    cell = torch.floor(coord.double() / size).long()
    cell = cell - cell.amin(0)
    if (widest := int(cell.max())) >= LIMIT:
        raise ValueError(
            f"the cloud spans {widest + 1:,} cells of {size} m on an axis; at most {LIMIT:,} are "
            "possible: are the coordinates in metres?"
        )
    return cell


@dataclass(frozen=True)
class Grouped:
    """Points sorted by their cell.

    Attributes:
        order: (N,) int64, the points; those of a cell stand together, in their own order.
        inverse: (N,) int64, the cell of each point, from 0 to G - 1.
        start: (G,) int64, where each cell begins in `order`.
        count: (G,) int64, points in each cell, at least 1.
    """

    order: Tensor
    inverse: Tensor
    start: Tensor
    count: Tensor


def group(cell: Tensor) -> Grouped:
    """Bring together the points that share a cell.

    Args:
        cell: (N, 3) int64, from 0 to `LIMIT` - 1.
    """
    key = (cell[:, 0] * LIMIT + cell[:, 1]) * LIMIT + cell[:, 2]
    ordered, order = torch.sort(key, stable=True)
    _, number, count = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    inverse = torch.empty_like(number)
    inverse[order] = number
    return Grouped(order, inverse, count.cumsum(0) - count, count)


@dataclass(frozen=True)
class Sampled:
    """One point of every occupied cell.

    Attributes:
        index: (G,) int64, the chosen points.
        grid: (G, 3) int64, their cells.
        inverse: (N,) int64, for every point the row of `index` that stands for it.
    """

    index: Tensor
    grid: Tensor
    inverse: Tensor


def sample(coord: Tensor, size: float, generator: torch.Generator) -> Sampled:
    """Keep one random point of every cell, all with the same probability.

    Args:
        coord: (N, 3) float32, m.
        size: edge of a cell, m.
        generator: source of the choice, on the device of `coord`.
    """
    cell = cells(coord, size)
    groups = group(cell)
    chance = torch.rand(
        len(groups.count), generator=generator, dtype=torch.float64, device=coord.device
    )
    index = groups.order[groups.start + (chance * groups.count).long()]
    return Sampled(index, cell[index], groups.inverse)


def fragments(cell: Tensor) -> Iterator[Tensor]:
    """Cut a cloud so that every point is in a fragment and no fragment has two in a cell.

    There are as many fragments as the fullest cell has points. Each holds one point of every cell:
    a cell with fewer points begins again.

    Args:
        cell: (N, 3) int64, as :func:`cells` gives them.

    Yields:
        (G,) int64, the points of a fragment.

    Source: `GridSample` with `mode="test"`, see above.
    """
    groups = group(cell)
    for turn in range(int(groups.count.max())):
        yield groups.order[groups.start + turn % groups.count]
