"""Submanifold sparse convolution in plain torch, forward and backward.

The output has the voxels of the input; an output reads those voxels of its neighbourhood that
exist. Neighbours are found by binary search among sorted keys, once for all convolutions of a
stage, and each of the K^3 offsets of a kernel is one gather, one matrix product and one addition
at the outputs that have a neighbour there.

Where two points share a voxel (scenes that Mix3D laid over one another), the first of them is the
neighbour that others, and both themselves, see.

Shapes: N points, K kernel edge, C_in and C_out widths, P pairs of neighbours in all.

Source: Graham et al. 2018, arXiv 1711.10275; weights have the layout of `spconv` 2.3.8
(`SubMConv3d`), and values and gradients equal it and a dense convolution
(`tests/domains/pointcloud/test_sparse_conv.py`).
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domains.pointcloud import spconv_backend


class Pairs(NamedTuple):
    """Neighbours of one kernel size, sorted by offset.

    Attributes:
        inputs: (P,) int64 point that is read.
        outputs: (P,) int64 point that it is added to; no point twice within an offset.
        counts: pairs of each of the K^3 offsets, the last axis of the kernel fastest.
    """

    inputs: Tensor
    outputs: Tensor
    counts: list[int]


class Voxels:
    """Occupied voxels of a stage and their neighbours, which are found when first asked for.

    Args:
        grid: (N, 3) int64, at least 0.
        batch: (N,) int64 scene of each point.
    """

    def __init__(self, grid: Tensor, batch: Tensor) -> None:
        self.grid = grid
        self.batch = batch
        self._pairs: dict[int, Pairs] = {}
        self._compiled: Any = None

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """Convolution without bias, (N, C_in) to (N, C_out)."""
        library = spconv_backend.library() if x.is_cuda else None
        if library is None:
            pairs = self.pairs(weight.shape[1])
            out: Tensor = _Convolution.apply(x, weight, pairs)  # type: ignore[no-untyped-call]
            return out
        if self._compiled is None:
            self._compiled = spconv_backend.tensor_of(library, self.grid, self.batch, x)
        return spconv_backend.convolve(library, self._compiled, x, weight)

    def pairs(self, kernel: int) -> Pairs:
        """Neighbours for an odd kernel edge."""
        if kernel not in self._pairs:
            self._pairs[kernel] = find_pairs(self.grid, self.batch, kernel)
        return self._pairs[kernel]


def find_pairs(grid: Tensor, batch: Tensor, kernel: int) -> Pairs:
    """Search the neighbours of all points.

    Args:
        grid: (N, 3) int64, at least 0.
        batch: (N,) int64.
        kernel: odd edge of the kernel.
    """
    reach = kernel // 2
    # A margin on all sides keeps offsets from running into the next row, plane or scene.
    extent = (grid.amax(0) + 1 + 2 * reach).tolist()
    strides = (extent[1] * extent[2], extent[2], 1)
    keys = batch * (extent[0] * extent[1] * extent[2])
    for axis, stride in enumerate(strides):
        keys = keys + (grid[:, axis] + reach) * stride
    keys, order = torch.sort(keys, stable=True)
    is_first = F.pad(keys[1:] != keys[:-1], (1, 0), value=True)
    # A last key that nothing equals, so that a search never runs out of the table.
    occupied = torch.cat([keys[is_first], keys.new_full((1,), torch.iinfo(keys.dtype).max)])
    representative = order[is_first]
    steps = range(-reach, reach + 1)
    inputs, outputs, counts = [], [], []
    for dx, dy in product(steps, steps):
        wanted = keys + (dx * strides[0] + dy * strides[1] - reach)
        at = torch.searchsorted(occupied, wanted)
        for dz in range(kernel):
            hit = occupied[at] == wanted + dz
            place = hit.nonzero().squeeze(1)
            inputs.append(representative[at[place]])
            outputs.append(order[place])
            counts.append(len(place))
            # The next voxel of the row stands right behind, if it is there.
            at = at + hit
    return Pairs(torch.cat(inputs), torch.cat(outputs), counts)


class SubmanifoldConv3d(nn.Module):
    """y_i = b + sum over offsets o of W_o x_(i + o), over the voxels i + o that exist.

    Args:
        width_in: C_in.
        width_out: C_out.
        kernel: odd edge.
        bias: whether there is a bias.
    """

    def __init__(self, width_in: int, width_out: int, kernel: int, *, bias: bool) -> None:
        super().__init__()
        self.kernel = kernel
        shape = (width_out, kernel, kernel, kernel, width_in)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(width_out)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as `nn.Conv3d` and spconv do."""
        bound = (self.kernel**3 * self.weight.shape[-1]) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, voxels: Voxels) -> Tensor:
        """(N, C_in) to (N, C_out)."""
        weight, device = self.weight, x.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x, weight = x.to(dtype), weight.to(dtype)
        out = voxels.convolve(x, weight)
        result: Tensor = out if self.bias is None else out + self.bias
        return result

    def extra_repr(self) -> str:
        width_out, *_, width_in = self.weight.shape
        return f"{width_in}, {width_out}, kernel={self.kernel}, bias={self.bias is not None}"


class _Convolution(torch.autograd.Function):
    """Saves input and weight; what is gathered for an offset lives as long as that offset.

    Sums over offsets are in float32 where the products are in half precision.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(x, weight, pairs.inputs, pairs.outputs)
        ctx.counts = pairs.counts
        maps = _maps(weight).mT
        out = x.new_zeros(len(x), len(weight), dtype=_sum_dtype(x))
        with torch.autocast(x.device.type, enabled=False):
            for offset, inputs, outputs in _by_offset(*pairs):
                product = x.index_select(0, inputs) @ maps[offset]
                out.index_add_(0, outputs, product.to(out.dtype))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, all_inputs, all_outputs = ctx.saved_tensors
        grad = grad.to(x.dtype)
        maps = _maps(weight)
        needs_x, needs_weight, _ = ctx.needs_input_grad
        grad_x = x.new_zeros(x.shape, dtype=_sum_dtype(x)) if needs_x else None
        grad_maps = torch.zeros_like(maps) if needs_weight else None
        with torch.autocast(x.device.type, enabled=False):
            for offset, inputs, outputs in _by_offset(all_inputs, all_outputs, ctx.counts):
                arriving = grad.index_select(0, outputs)
                if grad_x is not None:
                    grad_x.index_add_(0, inputs, (arriving @ maps[offset]).to(grad_x.dtype))
                if grad_maps is not None:
                    grad_maps[offset] = arriving.mT @ x.index_select(0, inputs)
        return (
            None if grad_x is None else grad_x.to(x.dtype),
            None if grad_maps is None else grad_maps.transpose(0, 1).reshape(weight.shape),
            None,
        )


def _maps(weight: Tensor) -> Tensor:
    """(K^3, C_out, C_in)."""
    return weight.view(len(weight), -1, weight.shape[-1]).transpose(0, 1)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _by_offset(
    inputs: Tensor, outputs: Tensor, counts: list[int]
) -> list[tuple[int, Tensor, Tensor]]:
    """Number, inputs and outputs of each offset that has any pair."""
    parts = zip(inputs.split(counts), outputs.split(counts), strict=True)
    return [(offset, *part) for offset, part in enumerate(parts) if counts[offset]]
