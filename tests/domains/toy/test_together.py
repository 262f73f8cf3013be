"""Many runs as one batched model: each ends as it would by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attention import AttentionFactory, registry
from domains.contract import OptimizerConfig, ScheduleConfig
from domains.toy import stack as stacks
from domains.toy.folded import FoldedNet
from domains.toy.model import ToyTransformer
from domains.toy.optimizer import StackedAdamW
from domains.toy.stack import MappedNet, ModelStack
from tests.domains.toy.helpers import Config, alone, recipe, small, together, varied

EPOCHS = 4


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


@pytest.mark.parametrize("variant", registry.names())
def test_runs_end_as_they_would_alone(variant: str) -> None:
    assert_same(small(), variant)


@pytest.mark.parametrize("variant", ["standard", "quest", "qknorm_hs"])
def test_single_precision_gives_the_same_losses_and_accuracies(variant: str) -> None:
    """At learning rates that do not blow rounding up to 1e-5 within the 252 steps."""
    cfgs = [Config(recipe=recipe(lr=0.001)), Config(recipe=recipe(lr=0.0005), seed=1)]
    group = together(cfgs, variant, EPOCHS)
    for row, cfg in enumerate(cfgs[:1]):
        _, history, _ = alone(cfg, variant, EPOCHS)
        for ours, theirs in zip(group.histories[row], history, strict=True):
            assert ours["train/loss"] == pytest.approx(theirs["train/loss"], abs=1e-5)
            for name in ("train/accuracy", "test/accuracy"):
                assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
