"""Loss, rates, schedule and evaluation of the module."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from domains.base import optimizer_of
from domains.contract import OptimizerConfig
from domains.pointcloud.batch import AugmentedScene
from domains.pointcloud.config import DatasetConfig, OneCycleConfig, PointCloudRecipe
from domains.pointcloud.data import tiny
from domains.pointcloud.module import OneCycle, PointCloudModule, block_rates

from .clouds import scenes, selected, small_net


def recipe_of(**changes: object) -> PointCloudRecipe:
    optimizer = OptimizerConfig(name="adamw", lr=0.002, betas=(0.95, 0.999), weight_decay=0.005)
    return PointCloudRecipe("ptv3", 50, 12, optimizer=optimizer, **changes)  # type: ignore[arg-type]


def module_of(variant: str = "standard", protocol: str = "single") -> PointCloudModule:
    return PointCloudModule(small_net(variant), recipe_of(), protocol=protocol, seed=0)


@pytest.mark.parametrize("total", [1, 2, 25, 26, 100, 977])
def test_the_schedule_is_torchs_own_one_cycle(total):
    """It divides by zero where the rise ends with the first step: then the peak comes first."""
    config = OneCycleConfig()

    def optimizer() -> torch.optim.Optimizer:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (2e-3, 2e-4)]
        return torch.optim.AdamW(groups, betas=(0.95, 0.999))

    ours, theirs = optimizer(), optimizer()
    schedule = OneCycle(ours, config, total)
    if total == 25:
        assert [group["lr"] for group in ours.param_groups] == [2e-3, 2e-4]
        return
    reference = torch.optim.lr_scheduler.OneCycleLR(
        theirs,
        [2e-3, 2e-4],
        total_steps=total,
        pct_start=0.04,
        div_factor=10.0,
        final_div_factor=100.0,
    )
    for step in range(total):
        for own, other in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert own["lr"] == pytest.approx(other["lr"], rel=1e-12), step
            assert own["betas"] == pytest.approx(other["betas"], rel=1e-12), step
        if step + 1 < total:
            for each in (ours, theirs):
                each.step()
            for each in (schedule, reference):
                each.step()


def test_blocks_learn_at_a_tenth_of_the_rate_and_all_weights_decay():
    net = small_net("qknorm_ds")
    rates = block_rates(net, recipe_of())
    inside = {
        id(p) for blocks in (net.encoder_blocks, net.decoder_blocks) for p in blocks.parameters()
    }
    for name, parameter in net.named_parameters():
        learns = 2e-4 if id(parameter) in inside else 2e-3
        decays = 0.0 if "core" in name else 0.005
        assert (rates[name].lr, rates[name].weight_decay) == pytest.approx((learns, decays)), name
    groups = optimizer_of(net, recipe_of().optimizer, rates).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([2e-3, 2e-4, 2e-4])


def test_the_schedule_waits_where_the_loss_scaler_skipped_a_step():
    module = module_of()
    scales = iter([1024.0, 1024.0, 512.0, 512.0, 1024.0])
    scaler = SimpleNamespace(get_scale=lambda: next(scales))
    module._trainer = SimpleNamespace(precision_plugin=SimpleNamespace(scaler=scaler))  # type: ignore[assignment]
    steps = []
    module.on_train_start()
    for _ in range(4):
        module.lr_scheduler_step(SimpleNamespace(step=lambda: steps.append(1)), None)
    assert len(steps) == 3


def test_predictions_do_not_depend_on_what_a_scene_is_batched_with():
    module = module_of().double().eval()
    batch = scenes(40, 70)
    batch.feat = batch.feat.double()
    together = module.scores(batch)
    for scene in (0, 1):
        rows = (batch.batch == scene).nonzero().squeeze(1)
        torch.testing.assert_close(module.scores(selected(batch, rows)), together[rows])


def test_points_of_the_files_are_scored_not_voxels():
    """Two points in one voxel, of which one is labelled otherwise, count by themselves."""
    module = module_of().eval()
    batch = scenes(30)
    predicted = module.scores(batch).argmax(1)
    batch.inverse = torch.cat([torch.arange(30), torch.arange(30)])
    batch.full_label = torch.cat([predicted, (predicted + 1) % 16])
    module.test_step(batch, 0)
    assert module.score.compute()["accuracy"].item() == pytest.approx(50.0)


def test_parts_are_summed_for_every_point():
    """Softmax outputs of all parts that hold a point are added, whichever part that is."""
    module = module_of(protocol="tta").eval()
    whole = scenes(50)
    rows = [torch.arange(0, 30), torch.arange(20, 50), torch.arange(50)]
    scene = AugmentedScene(
        parts=[selected(whole, part) for part in rows],
        points=rows,
        num_points=50,
        inverse=torch.arange(50).repeat(2),
        full_label=torch.zeros(100, dtype=torch.long),
        split="val",
    )
    total = module.summed_probabilities(scene)
    expected = torch.zeros(50, 16)
    for view, part in enumerate(rows):
        expected[part] += module.scores(selected(whole, part), view).softmax(1)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(total.sum(1), torch.tensor([2.0] * 20 + [3.0] * 10 + [2.0] * 20))
    module.test_step(scene, 0)
    hits = (total.argmax(1) == 0).double().mean().item()
    assert module.score.compute()["accuracy"].item() == pytest.approx(100.0 * hits)


def test_loss_is_the_sum_of_both():
    from domains.pointcloud.lovasz import cross_entropy, lovasz_softmax

    module = module_of().eval()
    batch = scenes(40)
    scores = module.net(batch, module._draws("train", 0))
    expected = cross_entropy(scores, batch.label) + lovasz_softmax(scores, batch.label)
    torch.testing.assert_close(module.loss(batch), expected)


FIRST_LOSSES = {
    "standard": [4.20592, 4.360751, 4.05128, 4.003434],
    "quest": [4.205349, 4.363068, 4.04909, 4.003897],
}
"""Of the first steps on made-up frames; what changes them changes trainings."""


@pytest.mark.parametrize("variant", FIRST_LOSSES)
def test_first_losses_are_those_stored(variant):
    cfg = SimpleNamespace(
        dataset=DatasetConfig(), recipe=recipe_of(grid_size=0.5), protocol="single", seed=0
    )
    data = tiny(cfg)
    module = PointCloudModule(small_net(variant), cfg.recipe, protocol="single", seed=0)
    rates = block_rates(module.net, cfg.recipe)
    optimizer = optimizer_of(module.net, cfg.recipe.optimizer, rates)
    schedule = OneCycle(optimizer, cfg.recipe.schedule, 50)
    torch.manual_seed(0)
    losses = []
    for batch in [*data.train_dataloader()] * 2:
        optimizer.zero_grad()
        loss = module.loss(batch)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses == pytest.approx(FIRST_LOSSES[variant], rel=2e-4)
