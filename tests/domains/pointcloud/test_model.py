"""The network as a whole: its size, and what must not change its output."""

from __future__ import annotations

import pytest
import torch

from attention import AttentionFactory, registry
from domains.pointcloud.batch import Batch
from domains.pointcloud.config import ModelConfig
from domains.pointcloud.model import PointTransformerV3

from .clouds import draws, scenes, selected, small_net

CLOSE = {"atol": 1e-10, "rtol": 1e-8}


def evaluated(net: PointTransformerV3, batch: Batch, seed: int = 0) -> torch.Tensor:
    """Scores in double precision, where rounding hides nothing."""
    batch.feat = batch.feat.double()
    with torch.no_grad():
        scores: torch.Tensor = net.double().eval()(batch, draws(seed))
    return scores


@pytest.mark.parametrize(
    ("variant", "added"), [("standard", 0), ("quest", 0), ("qknorm_ds", 22 * 2 * 16)]
)
def test_the_published_network_has_the_published_size(variant, added):
    with torch.device("meta"):
        net = PointTransformerV3(ModelConfig(), 16, AttentionFactory(variant))
    total = sum(parameter.numel() for parameter in net.parameters())
    head = sum(parameter.numel() for parameter in net.head.parameters())
    assert (total, head) == (46_159_312 + added, 1_040)


def test_rates_of_dropped_paths_rise_to_the_coarsest_stage_and_fall_again():
    with torch.device("meta"):
        net = PointTransformerV3(ModelConfig(), 16, AttentionFactory())
    encoder = [block.drop_path.rate for blocks in net.encoder_blocks for block in blocks]
    assert encoder == pytest.approx([0.3 * n / 13 for n in range(14)])
    decoder = [[block.drop_path.rate for block in blocks] for blocks in net.decoder_blocks]
    assert [rate for stage in decoder[::-1] for rate in stage] == pytest.approx(
        [0.3 * n / 7 for n in range(7, -1, -1)]
    )


@pytest.mark.parametrize("variant", registry.names())
def test_permuting_the_points_permutes_the_output(variant):
    batch = scenes(90)
    turned = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    net = small_net(variant)
    expected = evaluated(net, batch)[turned]
    torch.testing.assert_close(evaluated(net, selected(batch, turned)), expected, **CLOSE)


@pytest.mark.parametrize("packing", ["patches", "packed"])
@pytest.mark.parametrize("variant", registry.names())
def test_scenes_of_a_batch_do_not_see_one_another(variant, packing):
    """Also where their sizes in voxels differ, so that the curves of the batch are deeper."""
    small, large = scenes(25, edge=3), scenes(70, edge=12, seed=5)
    both = Batch(
        coord=torch.cat([small.coord, large.coord]),
        grid=torch.cat([small.grid, large.grid]),
        feat=torch.cat([small.feat, large.feat]),
        label=torch.cat([small.label, large.label]),
        batch=torch.cat([small.batch, large.batch + 1]),
        offset=torch.tensor([25, 95]),
        inverse=None,
        full_label=None,
        split="val",
    )
    net = small_net(variant, packing=packing)
    alone = torch.cat([evaluated(net, small), evaluated(net, large)])
    torch.testing.assert_close(evaluated(net, both), alone, **CLOSE)


def test_ways_of_packing_give_the_same_output_and_gradients():
    batch = scenes(5, 70, 30)
    batch.feat = batch.feat.double()
    results = []
    for packing in ("patches", "packed"):
        net = small_net(packing=packing, drop_path=0.0).double()
        net(batch, draws()).square().sum().backward()
        results.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*results, **CLOSE)


def test_orders_take_turns_by_the_draws_alone():
    net, batch = small_net(), scenes(90)
    first = evaluated(net, batch)
    torch.manual_seed(123)
    assert torch.equal(evaluated(net, batch), first)
    assert not torch.equal(evaluated(net, batch, seed=1), first)
    fixed = small_net(shuffle_orders=False)
    assert torch.equal(evaluated(fixed, batch), evaluated(fixed, batch, seed=1))


def test_the_draws_do_not_depend_on_the_variant():
    left = []
    for variant in ("standard", "quest"):
        generator = draws()
        small_net(variant).eval()(scenes(60), generator)
        left.append(torch.rand(1, generator=generator))
    assert torch.equal(*left)


def test_two_points_of_one_voxel_are_no_trouble():
    """As Mix3D makes them."""
    batch = scenes(40)
    twice = selected(batch, torch.arange(40).repeat(2))
    twice.feat = torch.randn(80, 4)
    net = small_net()
    loss = net(twice, draws()).square().mean()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
