"""Serialized attention against the reference and against a loop over patches."""

from __future__ import annotations

import pytest
import torch

from attention import AttentionFactory, registry
from attention.variant import Call, LayerState
from domains.pointcloud.attention_blocks import DropPath, PatchAttention, Values
from domains.pointcloud.config import PACKINGS
from domains.pointcloud.serialization import encode, patches_of
from domains.pointcloud.stage import Stage

from .clouds import scenes, stage_of, stored

OUTPUT, GRADIENT = 3e-5, 6e-5


def layer_of(
    variant: str = "standard", *, relative_positions: bool = False, **place: int
) -> PatchAttention:
    torch.manual_seed(0)
    return PatchAttention(
        32,
        2,
        patch_size=16,
        relative_positions=relative_positions,
        attention=AttentionFactory(variant),
        **{"layer": 0, "num_layers": 1, **place},
    )


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("kind", ["plain", "rpe"])
@pytest.mark.parametrize("order", ["z", "hilbert"])
@pytest.mark.parametrize("case", ["a", "b"])
def test_attention_equals_the_reference(case, order, kind, packing):
    """Case b has patches of 10: without flash the reference shrinks 16 to the smallest scene."""
    given = stored("ptv3_attention")
    layer = layer_of(relative_positions=kind == "rpe")
    with torch.no_grad():
        layer.qkv.weight.copy_(given["qkv_weight"])
        layer.qkv.bias.copy_(given["qkv_bias"])
        layer.proj.weight.copy_(given["proj_weight"])
        layer.proj.bias.copy_(given["proj_bias"])
        if layer.positions is not None:
            layer.positions.table.copy_(given["rpe_table"])
    grid, batch = given[f"{case}_grid_coord"], torch.repeat_interleave(given[f"{case}_scene_sizes"])
    codes, depth = encode(grid, batch, [order])
    assert torch.equal(codes[0], given[f"{case}_{order}_serialized_code"])
    patch_size = int(given[f"{case}_patch_size_used"])
    stage = Stage(grid, batch, codes, depth, patch_size=patch_size, packing=packing)
    feat = given[f"{case}_feat"].clone().requires_grad_()
    out = layer(feat, stage, 0, Values())
    (out * given[f"{case}_grad_output"]).sum().backward()
    name = f"{case}_{order}_{kind}"
    torch.testing.assert_close(out, given[f"{name}_output"], atol=OUTPUT, rtol=0)
    torch.testing.assert_close(feat.grad, given[f"{name}_grad_feat"], atol=GRADIENT, rtol=0)


def test_the_reach_of_relative_positions_is_that_of_the_checkpoints():
    """64^(1/3) is just below 4 in floating point."""
    layer = layer_of(relative_positions=True)
    assert layer.positions.reach == stored("ptv3_attention")["rpe_pos_bnd"] == 7


def by_loop(
    layer: PatchAttention, feat: torch.Tensor, stage: Stage, sizes: list[int]
) -> torch.Tensor:
    """One patch after the other, with the variant's own reference; one scene after the other."""
    patches = patches_of(torch.tensor(sizes), stage.patch_size)
    order = stage.order[0]
    q, k, v = layer._project(feat).unflatten(1, (3, 2, 16)).unbind(1)
    line = torch.empty(len(patches.pad), 32, dtype=feat.dtype)
    for first, last in zip(patches.ends[:-1].tolist(), patches.ends[1:].tolist(), strict=True):
        points = order[patches.pad[first:last]]
        heads = (t[points].transpose(0, 1)[None] for t in (q, k, v))
        call = Call(state=LayerState(), x=feat[points][None])
        out = layer.core.variant.reference(*heads, call)
        line[first:last] = out[0].transpose(0, 1).flatten(1)
    found = torch.empty_like(feat)
    found[order] = line[patches.unpad]
    return layer._project_out(found)


SIZES = ([1], [15], [16], [17], [2 * 16 + 3], [5, 40, 16, 1, 33])


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("variant", registry.names())
def test_all_ways_of_packing_equal_a_loop_over_patches(variant, packing):
    for sizes in SIZES:
        batch = scenes(*sizes)
        stage = stage_of(batch, ["hilbert"], 16, packing)
        layer = layer_of(variant).double()
        feat = torch.randn(sum(sizes), 32, dtype=torch.float64)
        expected = by_loop(layer, feat, stage, sizes)
        torch.testing.assert_close(layer(feat, stage, 0, Values()), expected, msg=str(sizes))


@pytest.mark.parametrize("relative_positions", [False, True])
def test_a_batch_of_scenes_of_all_sizes_is_attended_in_two_calls(relative_positions):
    batch = scenes(5, 40, 16, 1)
    parts = stage_of(batch, ["z"], 16), stage_of(batch, ["z"], 16, "packed")
    assert [len(stage.groups) for stage in parts] == [2, 1]
    assert parts[0].groups[0].mask is None
    layer = layer_of(relative_positions=relative_positions).double()
    feat = torch.randn(62, 32, dtype=torch.float64)
    torch.testing.assert_close(*(layer(feat, stage, 0, Values()) for stage in parts))


def test_a_variant_that_looks_back_sees_the_same_points_in_another_line():
    """Elliptical attention compares the values of a point, wherever the lines put it."""
    batch = scenes(20, 50)
    stage = stage_of(batch, ["z", "hilbert"], 16)
    layer = layer_of("elliptical", layer=1, num_layers=2).double()
    feat = torch.randn(70, 32, dtype=torch.float64)
    before = torch.randn(70, 32, dtype=torch.float64)
    values = Values()
    values.first = values.before = before
    out = layer(feat, stage, 1, values)
    torch.testing.assert_close(values.before, layer.qkv(feat)[:, 64:])

    patches = patches_of(torch.tensor([20, 50]), 16)
    patch = stage.order[1][patches.pad[:16]]  # the first one is full
    heads = layer.qkv(feat).unflatten(1, (3, 2, 16))[patch].permute(1, 2, 0, 3)[:, None]
    change = (heads[2] - before[patch].unflatten(1, (2, 16)).transpose(0, 1)[None]).abs().sum(-2)
    m = change / change.amax(-1, keepdim=True)
    weights = ((heads[0] * m[..., None, :]) @ heads[1].mT / 4.0).softmax(-1)
    expected = layer.proj((weights @ heads[2])[0].transpose(0, 1).flatten(1))
    places = patches.pad[:16] < 20
    torch.testing.assert_close(out[patch][places], expected[places])


def test_drop_path_drops_points_and_keeps_the_mean():
    torch.manual_seed(0)
    drop = DropPath(0.3)
    out = drop(torch.ones(20_000, 3))
    assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert torch.equal(out[:, 0], out[:, 2])
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop.eval()(out), out)
