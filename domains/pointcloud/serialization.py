"""Codes that line up voxels along space-filling curves, and patches of what is lined up.

Everything is integer arithmetic on whole tensors; there is no loop over points, scenes or patches.

Shapes: N voxels of B scenes, L curves, K points of a patch.

Source: Wu et al. 2024, arXiv 2312.10035; Pointcept/Pointcept at d74c646,
`pointcept/models/utils/serialization/` and `SerializedAttention.get_padding_and_inverse`; Skilling
2004, "Programming the Hilbert curve", AIP Conference Proceedings 707. Codes, orders and patches
equal theirs (`tests/domains/pointcloud/test_serialization.py`), with one difference on purpose:
the Hilbert curve of a scene has the depth of that scene, not of the largest scene in its batch, so
that what a scene is batched with does not change its curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_DEPTH = 16
"""Bits of a coordinate; with three of them 15 bits are left for the scene."""

MAX_SCENES = 2**15


def depth_of(grid: Tensor) -> Tensor:
    """Bits that the largest coordinate takes, () int64.

    Raises:
        ValueError: a coordinate is negative or takes more than 16 bits.
    """
    low, high = torch.aminmax(grid)
    if low < 0 or high >= 2**MAX_DEPTH:
        raise ValueError(
            f"voxel coordinates go from {int(low)} to {int(high)}; allowed: 0 to "
            f"{2**MAX_DEPTH - 1}. Count them from the corner of the scene, or take a larger "
            "recipe.grid_size"
        )
    return _bit_length(high)


def encode(grid: Tensor, batch: Tensor, orders: Sequence[str]) -> tuple[Tensor, int]:
    """Code of each voxel on each curve: the scene in the top bits, then its place on the curve.

    Args:
        grid: (N, 3) int64, at least 0 and below 2**16.
        batch: (N,) int64 scene of each voxel.
        orders: names of the curves, see `domains.pointcloud.config.ORDERS`.

    Returns:
        (L, N) int64 codes, and the bits a coordinate takes in all of them.

    Raises:
        ValueError: see :func:`depth_of`; or there are more than 2**15 scenes.
    """
    num_scenes = int(batch.max()) + 1
    if num_scenes > MAX_SCENES:
        raise ValueError(f"{num_scenes} scenes in a batch; allowed: {MAX_SCENES} at most")
    depth = int(depth_of(grid))
    # Half the bytes: a coordinate has 16 bits at most.
    x, y, z = grid.int().unbind(1)
    scene = batch << 3 * depth
    codes = {}
    for name in orders:
        first, second = (y, x) if name.endswith("_trans") else (x, y)
        if name.startswith("hilbert"):
            curve = _hilbert(*_turned(first, second, z, batch, num_scenes, depth), depth)
        else:
            curve = _interleave(first, second, z)
        codes[name] = scene | curve
    return torch.stack([codes[name] for name in orders]), depth


def ranks(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Order of the voxels along each curve, and the place of each voxel in it.

    Equal codes, which are points of one voxel, stay in the order of the points.

    Args:
        codes: (L, N) int64.

    Returns:
        Two (L, N) int64 permutations, inverse to one another.
    """
    order = torch.sort(codes, dim=1, stable=True).indices
    return order, inverse_of(order)


def inverse_of(permutation: Tensor) -> Tensor:
    """The inverse of permutations along the last axis, int64 of any shape."""
    places = torch.arange(permutation.shape[-1], device=permutation.device)
    return torch.empty_like(permutation).scatter_(-1, permutation, places.expand_as(permutation))


class Patches(NamedTuple):
    """Where the points of lined-up scenes stand once every patch is full.

    A scene of more than K points fills its last patch with the points of the patch before that
    would stand in the same places. A scene of up to K points is one patch by itself.

    Attributes:
        pad: (N',) int64 place in the unpadded line, for each place of the padded one.
        unpad: (N,) int64 place in the padded line, for each place of the unpadded one.
        ends: (P + 1,) int64 first place of each patch in the padded line, then N'.
    """

    pad: Tensor
    unpad: Tensor
    ends: Tensor


def patches_of(sizes: Tensor, patch_size: int) -> Patches:
    """Cut scenes into patches.

    Args:
        sizes: (B,) int64 points of each scene, at least 1.
        patch_size: K.
    """
    counts = (sizes + patch_size - 1) // patch_size
    padded = torch.where(sizes > patch_size, counts * patch_size, sizes)
    starts, padded_starts = (F.pad(t.cumsum(0), (1, 0)) for t in (sizes, padded))
    scene = torch.repeat_interleave(padded)
    place = torch.arange(len(scene), device=sizes.device) - padded_starts[scene]
    borrowed = place >= sizes[scene]
    pad = place - patch_size * borrowed + starts[scene]
    shift = padded_starts[:-1] - starts[:-1]
    unpad = torch.arange(int(starts[-1]), device=sizes.device)
    unpad = unpad + shift.repeat_interleave(sizes)
    patch = torch.repeat_interleave(counts)
    number = torch.arange(len(patch), device=sizes.device) - F.pad(counts.cumsum(0), (1, 0))[patch]
    ends = padded_starts[patch] + patch_size * number
    return Patches(pad, unpad, torch.cat([ends, padded_starts[-1:]]))


def _bit_length(values: Tensor) -> Tensor:
    """Bits that int64 values from 0 to 2**16 - 1 take."""
    # frexp's exponent is exact: such integers are exact in float64.
    return torch.frexp(values.double()).exponent.long()


def _spread(values: Tensor) -> Tensor:
    """Move bit i of an integer below 2**16 to bit 3 i."""
    wide = values.long()
    for shift, mask in (
        (16, 0x0000FF0000FF),
        (8, 0x00F00F00F00F),
        (4, 0x0C30C30C30C3),
        (2, 0x249249249249),
    ):
        wide = (wide | wide << shift) & mask
    return wide


def _interleave(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Bits of x, y and z in turns, x highest."""
    return _spread(x) << 2 | _spread(y) << 1 | _spread(z)


def _turned(
    x: Tensor, y: Tensor, z: Tensor, batch: Tensor, num_scenes: int, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Axes turned so that a curve of `depth` bits runs as one of each scene's own depth.

    A level of zero bits does nothing to the curve but turn its axes by one, so that the code of
    `depth` bits after the turn is the code of fewer bits before.
    """
    largest = torch.maximum(torch.maximum(x, y), z).long()
    largest = largest.new_zeros(num_scenes).scatter_reduce_(0, batch, largest, "amax")
    turns = (depth - _bit_length(largest)) % 3
    if not turns.any():
        return x, y, z
    turn = turns[batch]
    once, twice = turn == 1, turn == 2
    axes = (x, y, z)

    def pick(axis: int) -> Tensor:
        turned = torch.where(once, axes[(axis + 1) % 3], axes[axis])
        return torch.where(twice, axes[(axis + 2) % 3], turned)

    return pick(0), pick(1), pick(2)


def _hilbert(x: Tensor, y: Tensor, z: Tensor, depth: int) -> Tensor:
    """Place on the Hilbert curve, by Skilling's transform.

    Level by level from the top, each axis whose bit is set reflects what is below it in the first
    axis, each whose bit is not set exchanges it with the first axis.
    """
    axes = [x.clone(), y.clone(), z.clone()]
    for level in range(depth - 1, 0, -1):
        below = (1 << level) - 1
        for axis in range(3):
            # All ones below the level where the bit is set, else zeros.
            is_set = -(axes[axis] >> level & 1) & below
            if axis == 0:
                axes[0] ^= is_set
                continue
            exchanged = (axes[0] ^ axes[axis]) & (below ^ is_set)
            axes[axis] ^= exchanged
            axes[0] ^= exchanged | is_set
    # Gray decoding of the interleaved bits: every bit becomes the parity of those above it.
    code = _interleave(*axes)
    for shift in (1, 2, 4, 8, 16, 32):
        code ^= code >> shift
    return code
