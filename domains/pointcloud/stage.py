"""Points of one resolution, and what all blocks that work on them share.

Shapes: N points of B scenes, L orders, N' places in patches (borrowed points counted again).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attention.packing import Packing, packing_of
from domains.pointcloud.serialization import patches_of, ranks
from domains.pointcloud.sparse_conv import Voxels


class Group(NamedTuple):
    """Patches that enter the attention in one call.

    Attributes:
        places: number of places in all of them.
        packing: to a padded batch and back.
        mask: (patches, longest) bool, True = point; None when nothing is padded.
    """

    places: int
    packing: Packing
    mask: Tensor | None


class Stage:
    """Serialized points.

    Attributes:
        voxels: their voxels, with the neighbours that convolutions read.
        codes: (L, N) int64 place of each point on each curve.
        depth: bits of a coordinate in the codes.
        order: (L, N) int64 point at each place of a line.
        gather: (L, N') int64 point at each place of the patches.
        scatter: (L, N) int64 place of each point in the patches.
        groups: of patches, in the order of the places.

    Args:
        grid: (N, 3) int64, at least 0.
        batch: (N,) int64 scene of each point; every scene has one at least.
        codes: see above; the blocks take turns with its rows.
        depth: see above.
        patch_size: points of a patch.
        packing: see `domains.pointcloud.config.ModelConfig`.
    """

    def __init__(
        self,
        grid: Tensor,
        batch: Tensor,
        codes: Tensor,
        depth: int,
        *,
        patch_size: int,
        packing: str,
    ) -> None:
        self.voxels = Voxels(grid, batch)
        self.codes = codes
        self.depth = depth
        self.patch_size = patch_size
        self.packing = packing
        self.order, inverse = ranks(codes)
        patches = patches_of(torch.bincount(batch), patch_size)
        pad, unpad = patches.pad, patches.unpad
        lengths = patches.ends.diff()
        is_full = lengths == patch_size
        num_full, num_short = (int(n) for n in (is_full.sum(), (~is_full).sum()))
        if packing == "packed" or num_full == 0 or num_short == 0:
            self.groups = [_group(lengths)]
        else:
            # Full patches first, then those of small scenes, which alone need a mask.
            in_full = is_full.repeat_interleave(lengths)
            line = torch.argsort(in_full, descending=True, stable=True)
            pad = pad[line]
            unpad = torch.empty_like(line).scatter_(
                0, line, torch.arange(len(line), device=line.device)
            )[unpad]
            self.groups = [_group(lengths[is_full]), _group(lengths[~is_full])]
        self.gather = self.order[:, pad]
        self.scatter = unpad[inverse]

    def __len__(self) -> int:
        return len(self.voxels.grid)

    @property
    def num_orders(self) -> int:
        return len(self.codes)


def _group(lengths: Tensor) -> Group:
    ends = F.pad(lengths.cumsum(0), (1, 0))
    places = int(ends[-1])
    packing = packing_of("patches", ends, places)
    return Group(places, packing, packing.mask())
