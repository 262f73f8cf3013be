"""The convolution against spconv, against a dense one, and against its own rules."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn import functional as F

from domains.pointcloud import spconv_backend
from domains.pointcloud.sparse_conv import SubmanifoldConv3d, Voxels, find_pairs

from .clouds import distinct_voxels, scenes, stored

NOT_INSTALLED = "the extra 'pointcloud' is not installed"


def given_layer(kernel: int, dtype: torch.dtype = torch.float32) -> SubmanifoldConv3d:
    given = stored("submconv3d")
    layer = SubmanifoldConv3d(4, 6, kernel, bias=True)
    with torch.no_grad():
        layer.weight.copy_(given[f"k{kernel}_weight"])
        layer.bias.copy_(given[f"k{kernel}_bias"])
    return layer.to(dtype)


def given_voxels() -> Voxels:
    indices = stored("submconv3d")["indices"]
    return Voxels(indices[:, 1:], indices[:, 0])


@pytest.mark.parametrize("kernel", [3, 5])
def test_values_equal_spconv(kernel):
    given = stored("submconv3d")
    out = given_layer(kernel)(given["feat"], given_voxels())
    torch.testing.assert_close(out, given[f"k{kernel}_bias_output"], atol=5e-6, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_gradients_equal_a_dense_convolution(kernel, dtype, tolerance):
    given = stored("submconv3d")
    layer = given_layer(kernel, dtype)
    feat = given["feat"].clone().to(dtype).requires_grad_()
    (layer(feat, given_voxels()) * given["grad_output"]).sum().backward()
    for actual, name in (
        (feat.grad, "grad_feat_dense"),
        (layer.weight.grad, "grad_weight_dense"),
        (layer.bias.grad, "grad_bias"),
    ):
        expected = given[f"k{kernel}_{name}"].to(dtype)
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_values_and_gradients_equal_a_dense_convolution_on_random_voxels(kernel):
    grid = distinct_voxels(90, 6)
    batch = torch.arange(90) // 50
    layer = SubmanifoldConv3d(3, 5, kernel, bias=False).double()
    feat = torch.randn(90, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(90, 5, dtype=torch.float64)
    ours = layer(feat, Voxels(grid, batch))
    found = torch.autograd.grad((ours * weights).sum(), [feat, layer.weight])

    dense = torch.zeros(2, 6, 6, 6, 3, dtype=torch.float64)
    dense = dense.index_put((batch, *grid.T), feat).permute(0, 4, 1, 2, 3)
    out = F.conv3d(dense, layer.weight.permute(0, 4, 1, 2, 3), padding=kernel // 2)
    theirs = out.permute(0, 2, 3, 4, 1)[(batch, *grid.T)]
    expected = torch.autograd.grad((theirs * weights).sum(), [feat, layer.weight])
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(found, expected)


def test_voxels_of_other_scenes_and_rows_are_no_neighbours():
    """The last voxel of a row and the first of the next have keys next to one another."""
    grid = torch.tensor([[0, 0, 3], [0, 1, 0], [0, 0, 2]])
    pairs = find_pairs(grid, torch.tensor([0, 0, 1]), 3)
    assert len(pairs.inputs) == 3
    assert pairs.counts[13] == 3


def test_points_of_one_voxel_see_the_first_of_them():
    grid = torch.tensor([[0, 0, 1], [0, 0, 0], [0, 0, 0]])
    pairs = find_pairs(grid, torch.zeros(3, dtype=torch.long), 3)
    offsets = torch.repeat_interleave(torch.tensor(pairs.counts)).tolist()
    seen = zip(offsets, pairs.outputs.tolist(), strict=True)
    found = dict(zip(seen, pairs.inputs.tolist(), strict=True))
    assert found == {(13, 0): 0, (13, 1): 1, (13, 2): 1, (12, 0): 1, (14, 1): 0, (14, 2): 0}


def test_the_order_of_the_points_does_not_matter():
    batch = scenes(60, 40)
    layer = SubmanifoldConv3d(4, 6, 3, bias=True).double()
    feat = batch.feat.double()
    turned = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    out = layer(feat, Voxels(batch.grid, batch.batch))
    other = layer(feat[turned], Voxels(batch.grid[turned], batch.batch[turned]))
    torch.testing.assert_close(other, out[turned])


def test_neighbours_are_searched_once_a_stage():
    batch = scenes(30)
    voxels = Voxels(batch.grid, batch.batch)
    assert voxels.pairs(3) is voxels.pairs(3)
    assert voxels.pairs(3) is not voxels.pairs(5)


def test_half_precision_is_summed_in_full():
    batch = scenes(80, edge=5)
    layer = SubmanifoldConv3d(4, 6, 3, bias=True)
    voxels = Voxels(batch.grid, batch.batch)
    feat = batch.feat.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(feat, voxels)
    out.sum().backward()
    assert out.dtype == torch.float32
    assert layer.weight.grad.dtype == feat.grad.dtype == torch.float32
    torch.testing.assert_close(out, layer(feat, voxels), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_compiled_library_gives_our_values(kernel):
    library = pytest.importorskip("spconv.pytorch", reason=NOT_INSTALLED)
    given = stored("submconv3d")
    indices = given["indices"]
    order = indices[:, 0].argsort(stable=True)
    grid, batch, feat = indices[order, 1:], indices[order, 0], given["feat"][order]
    layer = given_layer(kernel)
    tensor = spconv_backend.tensor_of(library, grid, batch, feat)
    with torch.no_grad():
        ours = layer(feat, Voxels(grid, batch)) - layer.bias
        for _ in range(2):  # the second time from the tables that the tensor keeps
            theirs = spconv_backend.convolve(library, tensor, feat, layer.weight)
            torch.testing.assert_close(theirs, ours, atol=5e-6, rtol=0)


def test_a_library_without_gpu_kernels_is_passed_over():
    pytest.importorskip("spconv.pytorch", reason=NOT_INSTALLED)
    if not importlib.import_module("spconv.cppconstants").CPU_ONLY_BUILD:
        pytest.skip("this spconv has kernels for a GPU")
    assert spconv_backend.library() is None
