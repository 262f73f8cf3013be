"""Between resolutions: eight voxels become one, and back.

Shapes: N points, N2 of the coarser stage, C widths.

Source: Pointcept/Pointcept at d74c646, `SerializedPooling` and `SerializedUnpooling` of
`pointcept/models/point_transformer_v3/point_transformer_v3m1_base.py` (MIT). Coordinates in metres
are not averaged along: nothing reads them after the stem.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domains.pointcloud.stage import Stage

batch_norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)
"""The norm outside of blocks."""


class Pooling(nn.Module):
    """The largest projected feature among the points of a coarser voxel, then norm and GELU."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width_in, width_out)
        self.norm = batch_norm(width_out)

    def forward(self, x: Tensor, stage: Stage, shuffle: Tensor) -> tuple[Tensor, Stage, Tensor]:
        """Features (N2, C_out), their stage, and the (N,) int64 voxel that each point went to.

        Args:
            x: (N, C_in).
            stage: of the points.
            shuffle: (L,) int64 permutation of the orders of the coarser stage.
        """
        coarse, cluster, counts = coarser(stage, shuffle)
        lined_up = self.proj(x).index_select(0, stage.order[0])
        pooled = torch.segment_reduce(lined_up, "max", lengths=counts, unsafe=True)
        return F.gelu(self.norm(pooled)), coarse, cluster


class Unpooling(nn.Module):
    """Coarse features go back to the points they came from and meet those of the encoder."""

    def __init__(self, width_in: int, width_skip: int, width_out: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width_in, width_out)
        self.norm = batch_norm(width_out)
        self.proj_skip = nn.Linear(width_skip, width_out)
        self.norm_skip = batch_norm(width_out)

    def forward(self, x: Tensor, skip: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """Their sum (N, C_out), and what comes from the encoder alone, (N, C_out).

        Args:
            x: (N2, C_in) features of the coarser stage.
            skip: (N, C_skip) features of the encoder.
            cluster: (N,) int64, see :class:`Pooling`.
        """
        coarse = F.gelu(self.norm(self.proj(x)))
        beside = F.gelu(self.norm_skip(self.proj_skip(skip)))
        return beside + coarse.index_select(0, cluster), beside


def coarser(stage: Stage, shuffle: Tensor) -> tuple[Stage, Tensor, Tensor]:
    """The stage of voxels of twice the edge.

    The voxels of one coarser voxel follow one another on every curve, so the first order groups
    them without another sort, and codes lose three bits.

    Returns:
        The stage, the (N,) int64 number of each point's voxel in it, and the (N2,) int64 points
        of each of its voxels, in the first order of the finer stage.
    """
    bits = min(stage.depth, 1)
    codes = stage.codes >> 3 * bits
    order = stage.order[0]
    lined_up = codes[0, order]
    is_first = F.pad(lined_up[1:] != lined_up[:-1], (1, 0), value=True)
    number = is_first.cumsum(0) - 1
    cluster = torch.empty_like(order).scatter_(0, order, number)
    counts = torch.bincount(number)
    heads = order[is_first]
    voxels = stage.voxels
    coarse = Stage(
        voxels.grid[heads] >> bits,
        voxels.batch[heads],
        codes[:, heads][shuffle],
        stage.depth - bits,
        patch_size=stage.patch_size,
        packing=stage.packing,
    )
    return coarse, cluster, counts
