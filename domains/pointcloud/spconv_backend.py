"""Compiled submanifold convolutions, where one is installed and the points are on a GPU.

`spconv` (its CUDA builds) and `spconv_triton` offer the same classes, take our weights as they
are, and give our values up to rounding (`tests/domains/pointcloud/test_sparse_conv.py`, with the
CPU wheel). Where two points share a voxel they may keep the other of the two.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.func import functional_call

PACKAGES = ("spconv", "spconv_triton")


@cache
def library() -> ModuleType | None:
    """The `pytorch` module of an installed package that has kernels for a GPU."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        if package == "spconv" and importlib.import_module("spconv.cppconstants").CPU_ONLY_BUILD:
            continue
        return importlib.import_module(f"{package}.pytorch")
    return None


def tensor_of(library: ModuleType, grid: Tensor, batch: Tensor, x: Tensor) -> Any:
    """The library's sparse tensor, which keeps the neighbour tables that it finds.

    Args:
        library: see :func:`library`.
        grid: (N, 3) int64, at least 0.
        batch: (N,) int64 scene of each point, rising.
        x: (N, C) features.
    """
    indices = grid.new_empty(len(grid), 4)
    indices[:, 0], indices[:, 1:] = batch, grid
    shape = (grid.amax(0) + 1).tolist()
    return library.SparseConvTensor(x.contiguous(), indices.int(), shape, int(batch[-1]) + 1)


def convolve(library: ModuleType, tensor: Any, x: Tensor, weight: Tensor) -> Tensor:
    """Convolution without bias.

    Args:
        library: see :func:`library`.
        tensor: see :func:`tensor_of`.
        x: (N, C_in) features.
        weight: (C_out, K, K, K, C_in).

    Returns:
        (N, C_out).
    """
    width_out, kernel, *_, width_in = weight.shape
    layer = _layer(library, width_in, width_out, kernel)
    tensor = tensor.replace_feature(x.contiguous())
    out: Tensor = functional_call(layer, {"weight": weight}, (tensor,)).features
    return out


@cache
def _layer(library: ModuleType, width_in: int, width_out: int, kernel: int) -> Any:
    """A layer that only lends its code; its own weight is never read."""
    key = f"kernel {kernel}"
    return library.SubMConv3d(width_in, width_out, kernel, bias=False, indice_key=key)
