"""The attention hears of every optimizer step of a training run, and of nothing else."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from attention import MultiHeadAttention
from attention.variant import Projections
from domains.base import BenchmarkModule
from domains.contract import RecipeConfig


class Net(nn.Module):
    """Draws its weights after the layer was built."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(8, 2, variant=variant)
        for weight, _ in self.attention.projections().values():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x)
        return out


class Module(BenchmarkModule):
    def loss(self, batch: Tensor) -> Tensor:
        return self.net(batch).square().mean()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.loss(batch)


def fit(module: Module, **trainer: Any) -> None:
    data = DataLoader(torch.randn(6, 5, 8), batch_size=1)  # type: ignore[arg-type]
    L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **trainer,
    ).fit(module, data, data)


def module(variant: str) -> Module:
    torch.manual_seed(0)
    return Module(Net(variant), RecipeConfig("test", max_epochs=2, batch_size=1))


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.parametrize(("accumulated", "steps"), [(1, 12), (3, 4)])
def test_it_is_told_after_each_step(
    accumulated: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = module("qk_clip")
    attention = model.net.attention
    weights = [attention.q_proj.weight.detach().clone()]
    seen: list[Tensor] = []

    def after_step(projections: Projections) -> None:
        weight = projections["q"][0]
        assert weight.data_ptr() == attention.q_proj.weight.data_ptr()
        assert not torch.equal(weight, weights[-1]), "before the step"
        weights.append(weight.detach().clone())
        seen.append(attention.core.variant.peaks.clone())

    monkeypatch.setattr(attention.core.variant, "after_step", after_step)
    fit(model, accumulate_grad_batches=accumulated)
    assert len(seen) == steps
    assert all((peaks > -torch.inf).all() for peaks in seen)


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_clipping_happens_in_training() -> None:
    """A recipe that pushes queries and keys apart meets the threshold."""
    model = module("qk_clip")
    object.__setattr__(model.net.attention.core.variant.config, "threshold", 1e-3)
    fit(model)
    standard = module("standard")
    fit(standard)
    clipped = model.net.attention.q_proj.weight.norm()
    assert clipped < 0.5 * standard.net.attention.q_proj.weight.norm()


def test_weights_drawn_after_the_layer_are_adopted() -> None:
    """So that training starts as standard attention."""
    model = module("sigma_reparam")
    variant = model.net.attention.core.variant
    for name, (weight, _) in model.net.attention.projections().items():
        torch.testing.assert_close(
            variant.reparametrize(name, weight), weight, rtol=1e-4, atol=1e-5
        )


def test_other_variants_are_not_bothered(monkeypatch: pytest.MonkeyPatch) -> None:
    import domains.base

    monkeypatch.setattr(domains.base, "after_step", lambda net: pytest.fail("was told"))
    fit(module("quest"))
