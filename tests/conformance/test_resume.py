"""A run that was interrupted, wherever it stood, ends as one that was not, in every domain."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import execute
from benchmarks.store import Run, RunEnded, Store
from domains import registry as domains
from domains.pointcloud.tiny import FRAMES

TRAINING, VALIDATION, TEST = (
    f"on_{name}" for name in ("train_batch_end", "validation_batch_start", "test_batch_start")
)
STEPS = 4
"""Batches that an epoch has at least."""


def never() -> str | None:
    return None


def at(hook: str, number: int) -> Callable[[], str | None]:
    """Ask for a stop when one can be made in that hook for the time `number`, counted from 1."""
    left = iter(range(number - 1, -1, -1))

    def should_stop() -> str | None:
        inside = any(frame.name == hook for frame in traceback.extract_stack())
        return "interrupted" if inside and next(left) == 0 else None

    return should_stop


def go(run: Run, config: dict[str, Any], should_stop: Callable[[], str | None] = never) -> None:
    execute(run, config, lambda event: None, should_stop)


def stopped(run: Run, config: dict[str, Any], hook: str, number: int) -> str:
    """Where a run says that it was stopped."""
    with pytest.raises(RunEnded) as ended:
        go(run, config, at(hook, number))
    assert ended.value.state == "interrupted"
    return str(ended.value.reason)


def files(run: Run) -> list[str]:
    return sorted(path.name for path in run.path.glob("checkpoints/*"))


def outcome(run: Run) -> tuple[Any, ...]:
    """What two equal runs must agree on, bit by bit."""
    result = json.loads((run.path / "result.json").read_text())
    cost = {name: result["cost"][name] for name in ("steps", "epochs")}
    weights = torch.load(next((run.path / "checkpoints").glob("*.pt")))
    return result["metrics"], result["selected"], cost, run.metrics(), weights


def assert_equal(one: Run, other: Run) -> None:
    (*values, weights), (*others, other_weights) = outcome(one), outcome(other)
    assert values == others
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(tensor, other_weights[name]) for name, tensor in weights.items())


SMALL = {
    # With a memory, which lives on from batch to batch.
    "language": [
        *("recipe=transformer_xl", "model.layers=2", "model.width=16", "model.heads=2"),
        *("model.head_width=8", "model.feedforward=16", "model.memory=6"),
        *("recipe.segment=8", "recipe.window=12", "recipe.evaluation_batch=1"),
    ],
    "segmentation": [
        *("model.layers=2", "model.width=24", "model.heads=3", "model.feedforward=32"),
        "model.decoder_layers=1",
    ],
    "pointcloud": ["recipe=narrow"],
}
"""By domain, what makes its made-up runs small."""


def planned(domain: str, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """A small run of three epochs, with some batches in each."""
    asked = [f"domain={domain}", "dataset=default", "attention=quest", "seed=0", "synthetic=true"]
    asked += ["budget=smoke", "budget.max_epochs=3", "recipe.batch_size=4", "telemetry.every=1"]
    # Never at the end of an epoch: what is resumed from is what the stop has saved.
    asked += ["trainer.accelerator=cpu", "trainer.checkpoint_every_s=1000"]
    if domain in ("language", "segmentation"):
        monkeypatch.setattr(f"domains.{domain}.data.TINY_STEPS", STEPS)
    if domain == "pointcloud":
        monkeypatch.setitem(FRAMES, "train", 2 * STEPS)
        monkeypatch.setitem(FRAMES, "val", 2)
    (plan,) = expand(parse([*asked, *SMALL.get(domain, [])]))
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("domain", domains.names())
def test_an_interrupted_run_ends_with_the_same_bits(
    domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(domain, monkeypatch)
    config = plan.config.to_dict()
    whole, broken = (
        Store(tmp_path / name).prepare(plan.key, config) for name in ("whole", "broken")
    )
    go(whole, config)
    cost = json.loads((whole.path / "result.json").read_text())["cost"]
    epoch = cost["steps"] // cost["epochs"]
    assert epoch >= STEPS

    # In the second epoch, again in the same, once more where only its validation is left, and in
    # the test. After the last batch of an epoch nobody asks.
    place = stopped(broken, config, TRAINING, epoch + 1)
    assert place == f"stopped in epoch 1, step {epoch + 2}"
    assert files(broken) == ["main.inside.ckpt"]
    assert stopped(broken, config, TRAINING, 1) == f"stopped in epoch 1, step {epoch + 3}"
    assert stopped(broken, config, VALIDATION, 2) == f"stopped in epoch 1, step {2 * epoch}"
    assert stopped(broken, config, TRAINING, 1) == f"stopped in epoch 2, step {2 * epoch + 1}"
    assert files(broken) == ["main.inside.ckpt"]
    assert stopped(broken, config, TEST, 1) == "stopped in the test"
    go(broken, config, at(TRAINING, 1))  # in vain: that is over
    assert_equal(whole, broken)
    assert files(broken) == ["main.pt"]
