"""Many runs as one batched model: each ends as it would by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import AttentionFactory, Call, Prepared, Variant, registry
from attention.reference import attend_explicitly
from attention.variant import NEEDS_STEPS
from domains.contract import OptimizerConfig, ScheduleConfig
from domains.toy.config import SPEC, ModelConfig
from domains.toy.folded import FoldedNet
from domains.toy.model import ToyTransformer
from domains.toy.optimizer import StackedAdamW
from domains.toy.outcomes import READINGS
from domains.toy.stack import MappedNet, ModelStack
from tests.domains.toy.helpers import Config, alone, recipe, small, together, varied

EPOCHS = 4

# A variant with parameters runs through operations without a batching rule of their own.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def assert_same(base: Config, variant: str, epochs: int = EPOCHS) -> None:
    """A group of runs agrees with the same runs one by one, in all that is logged.

    In float64: where a parameter changes no logit (the key bias under standard attention), its
    gradient is rounding, and AdamW makes steps of it that are as long as any.
    """
    cfgs = varied(base)
    group = together(cfgs, variant, epochs, torch.float64)
    for row, cfg in enumerate(cfgs):
        module, history, metrics = alone(cfg, variant, epochs, torch.float64)
        for ours, theirs in zip(group.histories[row], history, strict=True):
            # Lightning keeps what it logs in float32.
            assert ours == pytest.approx(theirs, rel=1e-6), row
        assert group.metrics[row] == pytest.approx(metrics, rel=1e-6)
        for ours, theirs in zip(group.modules[row].parameters(), module.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=0.0, atol=1e-8), row


assert SPEC.together is not None
EXCLUDED = SPEC.together.excluded
TOGETHER = [name for name in registry.names() if name not in EXCLUDED]
AVERAGING = [name for name in TOGETHER if registry.entry(name).variant.averages_values]


@pytest.mark.parametrize("variant", TOGETHER)
def test_runs_end_as_they_would_alone(variant: str) -> None:
    assert_same(small(), variant)


def test_variants_that_act_after_steps_are_excluded_and_refused() -> None:
    acting = [name for name in registry.names() if NEEDS_STEPS in registry.entry(name).capabilities]
    assert set(EXCLUDED) == set(acting)
    for variant in acting:
        with pytest.raises(ValueError, match=rf"'{variant}' acts after.*launcher\.together=false"):
            together([small()], variant, 1)


@pytest.mark.parametrize("protocol", ["post_norm", "no_norm", "test_uniform", "test_as_train"])
def test_runs_end_as_they_would_alone_under_every_protocol(protocol: str) -> None:
    assert_same(small(protocol=protocol), "quest", 2)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_clipping_and_schedule_act_on_every_run_by_itself(interval: str) -> None:
    schedule = ScheduleConfig(name="cosine", interval=interval, warmup=2, final=0.1)
    assert_same(small(recipe=recipe(gradient_clip=0.5, schedule=schedule)), "standard", 3)


@pytest.mark.parametrize("constant", [True, False])
def test_queries_and_keys_keep_their_own_rate(constant: bool) -> None:
    own = recipe(qk_lr_ratio=3.0, qk_constant_decay=constant)
    assert_same(small(recipe=own), "qknorm_hs", 2)


@pytest.mark.parametrize("variant", ["quest", "qknorm_hs"])
def test_single_precision_gives_the_same_losses_and_accuracies(variant: str) -> None:
    """At learning rates that do not blow rounding up to 1e-5 within the 252 steps."""
    cfgs = [Config(recipe=recipe(lr=0.001)), Config(recipe=recipe(lr=0.0005), seed=1)]
    group = together(cfgs, variant, EPOCHS)
    _, history, _ = alone(cfgs[0], variant, EPOCHS)
    for ours, theirs in zip(group.histories[0], history, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], abs=1e-5)
        for name in ("train/accuracy", "test/accuracy"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)


def stack_of(variant: str = "standard", norm: str = "pre", models: int = 3) -> ModelStack:
    nets = []
    for seed in range(models):
        torch.manual_seed(seed)
        net = ToyTransformer(ModelConfig(), AttentionFactory(variant), length=20, norm=norm)
        nets.append(net.double())
    return ModelStack(nets)


def tokens() -> Tensor:
    return torch.randn(6, 20, 20, dtype=torch.float64)


@pytest.mark.parametrize("variant", TOGETHER)
def test_what_only_averages_the_values_is_folded(variant: str) -> None:
    assert isinstance(stack_of(variant).net, FoldedNet) == (variant in AVERAGING)


@pytest.mark.parametrize("variant", AVERAGING)
def test_folded_and_mapped_models_agree(variant: str) -> None:
    """The few operations of the one against the model itself, in values and gradients."""
    stack, x = stack_of(variant), tokens()
    torch.manual_seed(7)
    net = ToyTransformer(ModelConfig(), AttentionFactory(variant), length=20, norm="pre").double()
    mapped, leaves = MappedNet(net, stack.parameters), list(stack.parameters.values())
    results = []
    for one in (stack.net, mapped):
        logits, looks = one.evaluate(one.prepare(x))
        gradients = torch.autograd.grad(one.logits(one.prepare(x)).square().sum(), leaves)
        results.append([logits, *looks, *gradients])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("norm", ["post", "none"])
def test_other_norms_are_mapped(norm: str) -> None:
    assert isinstance(stack_of(norm=norm).net, MappedNet)


@dataclass(frozen=True)
class SquashedConfig:
    """No options."""


class Squashed(Variant):
    """Standard attention to values that are squashed first: no average of the values."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v.tanh(), scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend_explicitly(q @ k.mT, v.tanh(), call)


@pytest.fixture
def squashed() -> Any:
    registry.register("squashed", SquashedConfig, summary="-", source="-")(Squashed)
    yield "squashed"
    registry.unregister("squashed")


def test_a_variant_that_does_more_than_average_is_mapped(squashed: str) -> None:
    assert isinstance(stack_of(squashed).net, MappedNet)
    assert_same(small(), squashed, 2)


def test_what_is_logged() -> None:
    """The same names in every epoch; readings before training stand in the first alone."""
    group = together([small(), small(seed=1)], "quest", 2)
    first, second = group.histories[0]
    probes = {f"probe/{name}" for name in READINGS}
    assert set(second) == {"train/loss", "train/accuracy", "test/accuracy", "lr"} | probes
    assert set(first) == set(second) | {f"initial/{name}" for name in READINGS}
    assert group.steps == [7, 14]
    assert group.metrics[1] == {"test/accuracy": group.histories[1][-1]["test/accuracy"]}


def test_a_run_that_diverges_leaves_the_others_alone() -> None:
    wild = small(recipe=recipe(lr=1e18), seed=3)
    with_it = together([small(), wild, small(seed=1)], "standard", 3)
    without = together([small(), small(seed=3), small(seed=1)], "standard", 3)
    assert not all(torch.isfinite(torch.tensor([h["train/loss"] for h in with_it.histories[1]])))
    assert with_it.histories[0] == without.histories[0]
    assert with_it.histories[2] == without.histories[2]


def test_training_ends_when_the_engine_asks_for_it() -> None:
    from domains.contract import Phase
    from domains.toy.domain import DOMAIN
    from tests.domains.toy.helpers import data_of, module_of

    class Stopped(Exception):
        pass

    def stop(steps: int, values: Any) -> None:
        raise Stopped

    cfg = small()
    data = data_of(cfg, torch.float32)
    with pytest.raises(Stopped):
        DOMAIN.train_together([cfg], [module_of(cfg, data)], data, Phase("main", 5), stop)


def test_another_optimizer_is_refused() -> None:
    cfg = small(recipe=replace(recipe(), optimizer=OptimizerConfig(name="sgd")))
    with pytest.raises(ValueError, match=r"recipe\.optimizer\.name='sgd'.*launcher\.together"):
        together([cfg], "standard", 1)


def test_adamw_of_every_row_is_torch_s() -> None:
    """Own rates and decays of every row, hundreds of steps; to the last bits of float64."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    rates, decays = (0.1, 0.01, 0.001), (0.0, 0.1, 1.0)
    weights = start.clone()
    lr = torch.tensor(rates, dtype=torch.float64)[:, None].expand_as(weights)
    decay = torch.tensor(decays, dtype=torch.float64)[:, None].expand_as(weights)
    ours = StackedAdamW(weights, lr, decay, betas=(0.8, 0.99), eps=1e-6)
    rows = [row.clone().requires_grad_() for row in start]
    theirs = [
        torch.optim.AdamW([row], lr=rate, weight_decay=decay, betas=(0.8, 0.99), eps=1e-6)
        for row, rate, decay in zip(rows, rates, decays, strict=True)
    ]
    for step in range(300):
        gradient = torch.randn(3, 40, generator=generator, dtype=torch.float64)
        factor = 1.0 if step < 100 else 0.5
        for row, optimizer, grad, rate in zip(rows, theirs, gradient, rates, strict=True):
            row.grad = grad.clone()
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
        ours.step(gradient.clone(), factor)
    assert torch.allclose(weights, torch.stack(rows).detach(), rtol=0.0, atol=1e-12)
