"""Pooling against a group-by in plain Python, and the way back."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from domains.pointcloud.config import ORDERS
from domains.pointcloud.pooling import Pooling, Unpooling, coarser
from domains.pointcloud.serialization import encode

from .clouds import scenes, stage_of

KEEP = torch.arange(4)


def groups_of(batch) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for point, (scene, voxel) in enumerate(zip(batch.batch, batch.grid, strict=True)):
        found.setdefault((int(scene), *(voxel // 2).tolist()), []).append(point)
    return found


def test_pooling_equals_a_group_by():
    batch = scenes(70, 30, edge=7)
    stage = stage_of(batch, list(ORDERS), 16)
    torch.manual_seed(0)
    pooling = Pooling(4, 8).eval()
    with torch.no_grad():
        pooling.norm.running_mean.normal_()
        pooling.norm.running_var.uniform_(0.5, 2.0)
    out, coarse, cluster = pooling(batch.feat, stage, KEEP)
    groups = groups_of(batch)
    assert len(coarse) == len(groups) < 100
    projected = pooling.proj(batch.feat)
    for (scene, *voxel), points in groups.items():
        (number,) = set(cluster[points].tolist())
        assert coarse.voxels.grid[number].tolist() == voxel
        assert coarse.voxels.batch[number] == scene
        largest = projected[points].amax(0, keepdim=True)
        torch.testing.assert_close(out[number], F.gelu(pooling.norm(largest))[0])


def test_gradients_go_to_the_largest_alone():
    batch = scenes(70, edge=5)
    stage = stage_of(batch, ["z"], 16)
    pooling = Pooling(4, 8).double().eval()
    feat = batch.feat.double().requires_grad_()
    weights = torch.randn(len(groups_of(batch)), 8, dtype=torch.float64)
    out, _, cluster = pooling(feat, stage, torch.arange(1))
    found = torch.autograd.grad((out * weights).sum(), feat)[0]
    largest = torch.stack([pooling.proj(feat)[cluster == n].amax(0) for n in range(len(weights))])
    expected = torch.autograd.grad((F.gelu(pooling.norm(largest)) * weights).sum(), feat)[0]
    torch.testing.assert_close(found, expected)


def test_codes_of_the_coarser_stage_are_those_of_its_voxels():
    batch = scenes(60, 60, edge=12)
    stage = stage_of(batch, list(ORDERS), 16)
    coarse, _, counts = coarser(stage, KEEP)
    codes, depth = encode(coarse.voxels.grid, coarse.voxels.batch, ORDERS)
    assert coarse.depth == depth == 3
    assert torch.equal(coarse.codes, codes)
    assert int(counts.sum()) == 120


def test_orders_change_turns():
    stage = stage_of(scenes(40), list(ORDERS), 16)
    turn = torch.tensor([2, 0, 3, 1])
    kept, turned = coarser(stage, KEEP)[0], coarser(stage, turn)[0]
    assert torch.equal(turned.codes, kept.codes[turn])
    assert torch.equal(turned.gather, kept.gather[turn])


def test_points_of_one_voxel_become_one():
    batch = scenes(20, edge=4)
    batch.grid = batch.grid.repeat(2, 1)
    batch.batch = batch.batch.repeat(2)
    coarse, cluster, _ = coarser(stage_of(batch, list(ORDERS), 16), KEEP)
    assert torch.equal(cluster[:20], cluster[20:])
    assert len(torch.unique(coarse.voxels.grid, dim=0)) == len(coarse)


def test_a_scene_of_one_voxel_stays():
    """Nothing is left to shift: the scene must not fall into another one."""
    batch = scenes(1, 1, edge=1)
    coarse, cluster, _ = coarser(stage_of(batch, ["z"], 16), torch.arange(1))
    assert coarse.voxels.batch.tolist() == [0, 1]
    assert cluster.tolist() == [0, 1]


def test_unpooling_adds_what_both_sides_say():
    torch.manual_seed(0)
    layer = Unpooling(8, 4, 6).eval()
    coarse, skip, cluster = torch.randn(3, 8), torch.randn(5, 4), torch.tensor([0, 2, 2, 1, 0])
    out, alone = layer(coarse, skip, cluster)
    for point in range(5):
        up = F.gelu(layer.norm(layer.proj(coarse[cluster[point]][None])))
        beside = F.gelu(layer.norm_skip(layer.proj_skip(skip[point][None])))
        torch.testing.assert_close(out[point], (up + beside)[0])
        torch.testing.assert_close(alone[point], beside[0])
