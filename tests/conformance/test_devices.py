"""Two devices train as one does, in every domain: gradients, metrics, resuming."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from benchmarks import config as configuration
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import execute
from benchmarks.store import Run, Store
from domains import registry as domains
from domains.common.parts import rows_of, take_rows

ROOT = Path(__file__).resolve().parents[2]

GRADIENTS = """
import copy, json, os, sys
import torch
from torch import distributed as dist
from benchmarks import distributed, hardware
from benchmarks.runner import build
from domains import registry
from tests.conformance.test_devices import planned

rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2)
hardware.set_numerics()
found = {}
for name in registry.names():
    cfg = planned(name).config
    domain = registry.load(name)
    data, module = build(domain, cfg, domain.next_phase(cfg, []))
    module.double() if sys.argv[2] == "double" else None
    # The last batch of an epoch is smaller, and need not be even.
    for batch in list(data.train_dataloader())[:1] + list(data.train_dataloader())[-1:]:
        gradients = []
        for shared in (False, True):
            own = copy.deepcopy(module)
            share = 1.0
            part = copy.deepcopy(batch)
            if shared:
                distributed.prepare(own, 2)
                part = own.own_part(part, rank)
                share = own.share
            torch.manual_seed(0)
            (own.loss(part) * share).backward()
            grads = [p.grad for p in own.net.parameters() if p.grad is not None]
            if shared:
                for grad in grads:
                    dist.all_reduce(grad)
            gradients.append(torch.cat([grad.flatten().double() for grad in grads]))
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
    asked += ["budget=smoke", "recipe.batch_size=5", "telemetry=off", "trainer.accelerator=cpu"]
    composed = configuration.compose_run({"domain": domain}, {})
    for key in configuration.known_keys(composed, domain):
        value = OmegaConf.select(composed, key)
        if key.startswith(("model.", "recipe.")) and "drop" in key and isinstance(value, float):
            asked.append(f"{key}=0.0")
    (found,) = expand(parse([*asked, *options]))
    return found


def started(code: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """Two processes that meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), *arguments],
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
    first, second = started(GRADIENTS, "single")
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
        assert error < 1e-5, (samples, shared)
    assert gradients[domain][0][1], "nothing was shared"


@cache
def ended(folder: Path, domain: str, devices: int) -> tuple[Run, dict[str, Any]]:
    plan = planned(domain, f"trainer.devices={devices}")
    run = Store(folder / str(devices)).prepare(plan.key, plan.config.to_dict())
    execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
    run.set_status("running")
    run.set_status("done")
    result = run.result()
    assert result is not None
    return run, result


@pytest.mark.slow
@pytest.mark.parametrize("domain", domains.names())
def test_two_devices_end_with_the_metrics_of_one(domain: str, tmp_path: Path) -> None:
    (one, alone), (two, both) = (ended(tmp_path, domain, devices) for devices in (1, 2))
    assert alone["hash"] == both["hash"], "the number of devices changes what a run is"
    assert both["cost"]["devices"] == 2
    assert alone["cost"]["steps"] == both["cost"]["steps"]
    # After steps of training in single precision, whose sums were made in another order.
    assert both["metrics"] == pytest.approx(alone["metrics"], rel=5e-5, abs=1e-5, nan_ok=True)
    losses = [[r["values"]["train/loss"] for r in run.metrics()] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    weights = [
        torch.load(next(run.path.glob("checkpoints/*.pt")), weights_only=True) for run in (one, two)
    ]
    assert weights[0].keys() == weights[1].keys()


def test_batches_without_rows_are_refused() -> None:
    assert rows_of({"x": torch.zeros(3, 2), "split": "train"}) == 3
    assert len(take_rows({"x": torch.zeros(3, 2)}, 1, 3)["x"]) == 2
    for batch in ({"x": torch.zeros(3), "y": torch.zeros(4)}, object()):
        with pytest.raises(ValueError, match=r"trainer\.devices must be 1"):
            rows_of(batch)
