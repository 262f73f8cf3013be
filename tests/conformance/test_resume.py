"""A run that was interrupted ends as one that was not, in every domain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.plan import expand, parse
from benchmarks.runner import execute
from benchmarks.store import Run, RunEnded, Store
from domains import registry as domains


def after(batches: int) -> Callable[[], str | None]:
    """Ask for a stop before batch number `batches`, counted from 0."""
    seen = iter(range(10**9))
    return lambda: "interrupted" if next(seen) >= batches else None


def outcome(run: Run) -> tuple[Any, ...]:
    result = json.loads((run.path / "result.json").read_text())
    weights = torch.load(next((run.path / "checkpoints").glob("*.pt")))
    return result["metrics"], [r for r in run.metrics() if "values" in r], weights


@pytest.mark.slow
@pytest.mark.parametrize("domain", domains.names())
def test_an_interrupted_run_ends_with_the_same_bits(domain: str, tmp_path: Path) -> None:
    asked = [f"domain={domain}", "dataset=default", "attention=quest", "seed=0", "synthetic=true"]
    asked += ["budget=smoke", "budget.max_epochs=3", "recipe.batch_size=4", "telemetry=off"]
    asked += ["trainer.accelerator=cpu", "trainer.checkpoint_every_s=0"]
    if domain == "pointcloud":
        asked.append("recipe=narrow")  # the full network takes ten times as long
    (plan,) = expand(parse(asked))
    config = plan.config.to_dict()
    whole, broken = (
        Store(tmp_path / name).prepare(plan.key, config) for name in ("whole", "broken")
    )
    execute(whole, config, lambda event: None, lambda: None)
    steps = json.loads((whole.path / "result.json").read_text())["cost"]["steps"]
    with pytest.raises(RunEnded):
        execute(broken, config, lambda event: None, after(steps // 3 + 1))
    assert list(broken.path.glob("checkpoints/*.resume.ckpt")), "nothing to resume from"
    execute(broken, config, lambda event: None, lambda: None)
    one, other = outcome(whole), outcome(broken)
    assert one[:2] == other[:2]
    assert all(torch.equal(tensor, other[2][name]) for name, tensor in one[2].items())
