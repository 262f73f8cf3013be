"""Two devices train as one does, in every domain: gradients, metrics, resuming."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from benchmarks import config as configuration
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build, execute
from benchmarks.store import Run, Store
from domains import registry as domains
from domains.common.parts import rows_of, take_rows

ROOT = Path(__file__).resolve().parents[2]

GRADIENTS = """
import copy, json, os, sys
import torch
from lightning.pytorch.plugins import DoublePrecision
from torch import distributed as dist
from benchmarks import hardware
from benchmarks.devices import batches
from benchmarks.runner import build
from domains import registry
from tests.conformance.test_devices import planned

rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2)
hardware.set_numerics()
double = DoublePrecision()
found = {}
for name in registry.names():
    cfg = planned(name).config
    domain = registry.load(name)
    data, module = build(domain, cfg, domain.next_phase(cfg, []))
    module.double()
    # The last batch of an epoch is smaller, and need not be even.
    for batch in list(data.train_dataloader())[:1] + list(data.train_dataloader())[-1:]:
        batch = module.on_after_batch_transfer(double.convert_input(batch), 0)
        gradients = []
        for shared in (False, True):
            own = copy.deepcopy(module)
            share = 1.0
            part = copy.deepcopy(batch)
            if shared:
                batches.prepare(own, 2)
                part = own.own_part(part, rank)
                share = own.share
            torch.manual_seed(0)
            with double.forward_context():
                (own.loss(part) * share).backward()
            grads = [p.grad for p in own.net.parameters() if p.grad is not None]
            if shared:
                for grad in grads:
                    dist.all_reduce(grad)
            gradients.append(torch.cat([grad.flatten() for grad in grads]))
        alone, both = gradients
        error = float((alone - both).norm() / alone.norm())
        found.setdefault(name, []).append([error, own.is_shared, module.samples(batch)])
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


def planned(domain: str, *options: str) -> Planned:
    """A small run without dropout, whose batches do not divide evenly."""
    asked = [f"domain={domain}", "dataset=default", "attention=quest", "seed=0", "synthetic=true"]
    asked += ["budget=smoke", "recipe.batch_size=3", "recipe.schedule.warmup=0", "telemetry=off"]
    asked += ["trainer.accelerator=cpu"]
    groups = {"domain": domain}
    if "narrow" in configuration.choices("recipe", domain):
        groups["recipe"] = "narrow"  # full networks take ten times as long
        asked.append("recipe=narrow")
    composed = configuration.compose_run(groups, {})
    for key in configuration.known_keys(composed, domain):
        value = OmegaConf.select(composed, key)
        if key.startswith(("model.", "recipe.")) and "drop" in key and isinstance(value, float):
            asked.append(f"{key}=0.0")
    (found,) = expand(parse([*asked, *options]))
    return found


def started(code: str) -> list[subprocess.Popen[str]]:
    """Two processes that meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def gradients() -> dict[str, list[list[Any]]]:
    """By domain and batch: relative distance of the gradients, whether it was shared, samples."""
    first, second = started(GRADIENTS)
    said, _ = first.communicate(timeout=900)
    second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0)
    found: dict[str, list[list[Any]]] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("domain", domains.names())
def test_the_gradient_of_a_shared_batch_is_that_of_the_batch(
    domain: str, gradients: dict[str, list[list[Any]]]
) -> None:
    for error, shared, samples in gradients[domain]:
        assert error < 1e-12, (samples, shared)
    assert any(shared and samples % 2 for _, shared, samples in gradients[domain])


def ended(folder: Path, domain: str, *options: str) -> tuple[Run, dict[str, Any]]:
    """A run in double precision, and its result."""
    plan = planned(domain, "trainer.precision=64-true", *options)
    run = Store(folder).prepare(plan.key, plan.config.to_dict())
    execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
    run.set_status("running")
    run.set_status("done")
    result = run.result()
    assert result is not None
    return run, result


def weights(run: Run) -> dict[str, torch.Tensor]:
    """What a run has kept."""
    found: dict[str, torch.Tensor] = torch.load(next(run.path.glob("checkpoints/*.pt")))
    return found


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Between parameters, over all that `other` has."""
    return float(sum((one[name] - other[name]).square().sum() for name in other)) ** 0.5


def assert_trained_alike(domain: str, one: Run, other: Run, *options: str) -> None:
    """Two runs of `domain` with `options` have lost, learnt and found the same, to 1e-6.

    In single precision they would come apart by up to 1e-3: a parameter whose gradient is nothing
    but rounding, such as a bias before a batch norm, is moved by Adam as far as any other.
    """
    results = [json.loads((run.path / "result.json").read_text()) for run in (one, other)]
    assert results[0]["hash"] == results[1]["hash"], "the devices change what a run is"
    for key in ("steps", "epochs"):
        assert results[0]["cost"][key] == results[1]["cost"][key]
    assert results[0]["parameters"] == results[1]["parameters"]
    metrics = [result["metrics"] for result in results]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-6, nan_ok=True)
    values = [[r["values"] for r in run.metrics() if "values" in r] for run in (one, other)]
    assert values[0]
    for ours, theirs in zip(*values, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-6, nan_ok=True)
    cfg = planned(domain, *options).config
    phase = domains.load(domain).next_phase(cfg, [])
    assert phase is not None
    _, module = build(domains.load(domain), cfg, phase)
    first = {name: p.detach().double() for name, p in module.named_parameters()}
    kept = [weights(run) for run in (one, other)]
    assert {k: v.shape for k, v in kept[0].items()} == {k: v.shape for k, v in kept[1].items()}
    moved = distance(kept[0], first)
    assert moved > 0.0
    # What training has done is compared, not the weights: most of them is the initial values.
    assert distance(kept[0], {name: kept[1][name] for name in first}) < 1e-6 * moved


@pytest.mark.slow
@pytest.mark.parametrize("domain", domains.names())
def test_two_devices_end_with_the_metrics_of_one(domain: str, tmp_path: Path) -> None:
    one, _ = ended(tmp_path / "one", domain)
    two, result = ended(tmp_path / "two", domain, "trainer.devices=2")
    assert result["cost"]["devices"] == 2
    assert_trained_alike(domain, one, two)


def test_batches_without_rows_are_refused() -> None:
    assert rows_of({"x": torch.zeros(3, 2), "split": "train"}) == 3
    assert len(take_rows({"x": torch.zeros(3, 2)}, 1, 3)["x"]) == 2
    for batch in ({"x": torch.zeros(3), "y": torch.zeros(4)}, object()):
        with pytest.raises(ValueError, match=r"trainer\.devices must be 1"):
            rows_of(batch)
