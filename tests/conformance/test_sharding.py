"""Two devices that share the weights train as one does, or the model is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn
from torch.distributed.tensor import DTensor

from benchmarks.devices import processes, weights
from benchmarks.runner import build, execute
from benchmarks.store import RunEnded, Store
from domains import registry as domains
from domains.base import BenchmarkData, BenchmarkModule
from tests.conformance.test_devices import assert_trained_alike, ended, planned

TWO = ("trainer.devices=2", "trainer.strategy=fsdp")
SMALL = ("model.layers=2", "recipe.segment=32", "recipe.window=32")
SHARDED = {"language": ("attention=value_residual", *SMALL)}
"""Domains whose models name their blocks, with options."""

MEMORY = ("recipe=transformer_xl", "model.memory=24", *SMALL)
# One cluster, whose weight has one row for two devices; steps as long as the gradients are.
MEMORY += ("model.cutoffs=[150]", "recipe.gradient_clip=null")
MEMORY += ("recipe.optimizer.name=sgd", "recipe.optimizer.lr=0.1", "recipe.optimizer.momentum=0.9")
"""Options of a language model that remembers."""


def built(domain: str, *options: str) -> tuple[BenchmarkData, BenchmarkModule]:
    """Data and model of a run whose weights are to be sharded."""
    cfg = planned(domain, *TWO, *options).config
    phase = domains.load(domain).next_phase(cfg, [])
    assert phase is not None
    return build(domains.load(domain), cfg, phase)


@pytest.mark.slow
@pytest.mark.parametrize("domain", SHARDED)
def test_shared_weights_end_with_the_metrics_of_one_device(
    domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded: list[Any] = []

    def fully_shard(module: Any, **options: Any) -> None:
        sharded.append(module)
        original(module, **options)

    original = weights.fully_shard
    options = SHARDED[domain]
    one, _ = ended(tmp_path / "one", domain, *options)
    monkeypatch.setattr(weights, "fully_shard", fully_shard)
    two, result = ended(tmp_path / "two", domain, *options, *TWO)
    assert result["cost"]["devices"] == 2
    assert len(sharded) == 2 * (2 + 1), "fit and test each shard two blocks and the rest"
    assert_trained_alike(domain, one, two, *options)


@pytest.mark.slow
@pytest.mark.parametrize("sharded_first", [True, False], ids=["to one device", "from one device"])
def test_a_run_goes_on_with_other_devices(sharded_first: bool, tmp_path: Path) -> None:
    options = (*MEMORY, "budget.max_epochs=6", "trainer.checkpoint_every_s=0")
    whole, _ = ended(tmp_path / "whole", "language", *options)
    devices = [TWO, ()] if sharded_first else [(), TWO]
    before, later = (
        planned("language", "trainer.precision=64-true", *options, *where) for where in devices
    )
    broken = Store(tmp_path / "broken").prepare(before.key, before.config.to_dict())

    def stop() -> str | None:
        ended = sum("values" in record for record in broken.metrics())
        return "interrupted" if ended >= 3 else None

    with pytest.raises(RunEnded, match="stopped"):
        execute(broken, before.config.to_dict(), lambda event: None, stop)
    execute(broken, later.config.to_dict(), lambda event: None, lambda: None)
    assert_trained_alike("language", whole, broken, *options)


def test_a_fit_leaves_its_last_weights_in_a_whole_network() -> None:
    """A run without a selection keeps them; here in a world of one process."""
    data, module = built("language", *SMALL)
    first = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with processes.environment(1):
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            strategy=weights.ShardedWeights(),
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            plugins=[LightningEnvironment()],
        )
        trainer.fit(module, datamodule=data)
    last = module.state_dict()
    assert last.keys() == first.keys()
    assert not any(isinstance(tensor, DTensor) for tensor in last.values())
    assert not torch.equal(last["net.embedding.words.weight"], first["net.embedding.words.weight"])


@pytest.mark.parametrize("domain", [name for name in domains.names() if name not in SHARDED])
def test_a_model_without_blocks_is_refused(domain: str) -> None:
    with pytest.raises(ValueError, match=r"trainer\.strategy='fsdp'.* names no blocks.*: ddp"):
        built(domain)


def test_attention_that_changes_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainer\.strategy='fsdp'.* after a step.*: ddp"):
        built("language", *SMALL, "attention=qk_clip")


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_parameters_that_cannot_be_sharded_are_refused(shape: tuple[int, ...]) -> None:
    _, module = built("language", *SMALL)
    module.net.scale = nn.Parameter(torch.ones(shape))
    with pytest.raises(ValueError, match=r"trainer\.strategy='fsdp'.* 'scale' .*: ddp"):
        weights.check_sharding(planned("language", *TWO).config.trainer, module)
