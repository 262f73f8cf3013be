"""Queries and keys may learn at another rate than the rest of the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention import MultiHeadAttention
from benchmarks.config import compose_run, run_config
from domains.base import Rate, build_optimizer, parameter_rates
from domains.contract import OptimizerConfig, RecipeConfig


class Net(nn.Module):
    def __init__(self, projection: str = "separate") -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.attention = MultiHeadAttention(8, 2, variant="qknorm_hs", projection=projection)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.embed(x))


LOOKING = {
    "attention.q_proj.weight", "attention.q_proj.bias",
    "attention.k_proj.weight", "attention.k_proj.bias",
    "attention.core.variant.log_scale",
}  # fmt: skip


def test_queries_keys_and_scales_learn_faster_and_nothing_else():
    net, config = Net(), OptimizerConfig(lr=0.01, weight_decay=0.2)
    rates = parameter_rates(net, config, qk_lr_ratio=10.0)
    assert set(rates) == {name for name, _ in net.named_parameters()}
    for name, rate in rates.items():
        decay = 0.0 if name.endswith("log_scale") else 0.02 if name in LOOKING else 0.2
        assert rate.lr == pytest.approx(0.1 if name in LOOKING else 0.01), name
        assert rate.weight_decay == pytest.approx(decay), name


def test_the_decay_may_grow_with_the_rate():
    rates = parameter_rates(
        Net(),
        OptimizerConfig(lr=0.01, weight_decay=0.2),
        qk_lr_ratio=10.0,
        qk_constant_decay=False,
    )
    assert rates["attention.q_proj.weight"] == Rate(pytest.approx(0.1), 0.2)


def test_frozen_parameters_have_no_rate():
    net = Net()
    net.embed.requires_grad_(False)
    assert not any(name.startswith("embed") for name in parameter_rates(net, OptimizerConfig()))
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train"):
        build_optimizer(net, OptimizerConfig())


def first_step(ratio: float) -> dict[str, Tensor]:
    """How far every parameter moves in one step of plain gradient descent."""
    torch.manual_seed(0)
    net = Net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    config = OptimizerConfig(name="sgd", lr=0.1)
    optimizer = build_optimizer(net, config, qk_lr_ratio=ratio)
    net(torch.randn(3, 5, 4)).square().sum().backward()
    optimizer.step()
    return {name: p.detach() - before[name] for name, p in net.named_parameters()}


def test_the_first_step_is_longer_by_the_ratio():
    plain, fast = first_step(1.0), first_step(4.0)
    for name, moved in plain.items():
        factor = 4.0 if name in LOOKING else 1.0
        torch.testing.assert_close(fast[name], factor * moved, rtol=1e-3, atol=1e-6)
    assert plain["attention.q_proj.weight"].abs().max() > 1e-4


def test_a_schedule_leaves_the_ratio_alone():
    optimizer = build_optimizer(Net(), OptimizerConfig(lr=0.01), qk_lr_ratio=3.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
    optimizer.step()
    schedule.step()
    assert {round(group["lr"], 6) for group in optimizer.param_groups} == {0.005, 0.015}


def test_a_fused_projection_cannot_be_split():
    net = Net("fused")
    parameter_rates(net, OptimizerConfig(), qk_lr_ratio=1.0)
    with pytest.raises(ValueError, match=r"qk_lr_ratio=3.*'attention.qkv_proj.weight'.*separate"):
        parameter_rates(net, OptimizerConfig(), qk_lr_ratio=3.0)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_must_be_a_positive_number(ratio: float):
    with pytest.raises(ValueError, match=r"recipe.qk_lr_ratio=.* must be a number above 0"):
        RecipeConfig("any", max_epochs=1, batch_size=1, qk_lr_ratio=ratio)


def test_the_ratio_is_a_key_of_every_recipe():
    composed = compose_run({"domain": "timeseries"}, {"recipe.qk_lr_ratio": 3.0})
    assert run_config(composed).recipe.qk_lr_ratio == 3.0
