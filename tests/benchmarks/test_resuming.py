"""Where a stopped run goes on: which file, whose answer to a signal, and what is written when."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.resuming import ResumeFiles, ResumePoint
from benchmarks.store import ClaimLostError, Run, RunEnded
from domains.common.samplers import Remaining, SequentialBatches
from tests.benchmarks.test_runner import after, assert_equal, go, outcome, planned, start

SHORT = ("budget.max_epochs=3", "recipe.batch_size=4", "trainer.checkpoint_every_s=0")
IN_THE_THIRD_EPOCH = 22


def checkpoints(run: Run) -> list[str]:
    return sorted(path.name for path in run.path.glob("checkpoints/*"))


def saved(path: Path, step: int, batch: int | None = None, devices: int = 1) -> None:
    content: dict[str, Any] = {"epoch": 4, "global_step": step}
    if batch is not None:
        content["inside_epoch"] = {"batch": batch, "sums": [{}] * devices, "logged": {}}
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)


def test_the_later_of_two_checkpoints_is_taken(tmp_path: Path) -> None:
    run = start(tmp_path, planned())
    files = ResumeFiles(run, "main", devices=1)
    assert files.position() is None
    saved(files.epoch_end, step=50)
    saved(files.inside, step=53, batch=3)
    found = files.position()
    assert found is not None
    assert (found.path, found.epoch, found.batch) == (files.inside, 4, 3)
    # Left by an attempt that died before it could remove it.
    for step in (43, 50):
        saved(files.inside, step=step, batch=3)
        found = files.position()
        assert found is not None
        assert (found.path, found.epoch, found.batch) == (files.epoch_end, 5, 0)
    saved(files.inside, step=53, batch=3, devices=2)
    found = files.position()
    assert found is not None
    assert found.path == files.epoch_end, "half of what two devices have summed up is lost"
    files.discard()
    assert files.position() is None


def test_a_damaged_checkpoint_leaves_that_of_the_epoch_before(tmp_path: Path) -> None:
    plan = planned(*SHORT)
    whole, broken = start(tmp_path / "whole", plan), start(tmp_path / "broken", plan)
    go(whole, plan)
    with pytest.raises(RunEnded):
        go(broken, plan, after(IN_THE_THIRD_EPOCH))
    assert checkpoints(broken) == ["main.inside.ckpt", "main.resume.ckpt"]
    (broken.path / "checkpoints" / "main.inside.ckpt").write_bytes(b"PK torn")
    go(broken, plan)
    assert_equal(outcome(whole), outcome(broken))
    assert checkpoints(broken) == ["main.inside.ckpt.corrupt-1", "main.pt"]


def test_a_loader_that_cannot_begin_inside_an_epoch_begins_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domains.timeseries.data.Remaining", lambda order, epoch, batch: order)
    plan = planned(*SHORT)
    whole, broken = start(tmp_path / "whole", plan), start(tmp_path / "broken", plan)
    go(whole, plan)
    with pytest.raises(RunEnded):
        go(broken, plan, after(IN_THE_THIRD_EPOCH))
    assert checkpoints(broken) == ["main.resume.ckpt"]
    go(broken, plan)
    assert_equal(outcome(whole), outcome(broken))


@pytest.fixture
def terminations() -> Iterator[list[int]]:
    """SIGTERMs that a launcher has noted."""
    noted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    yield noted
    signal.signal(signal.SIGTERM, before)


def test_a_terminated_run_is_saved_where_it_stands(tmp_path: Path, terminations: list[int]) -> None:
    """Symptom: Lightning's answer to SIGTERM ended the run before the launcher's could save it."""
    plan = planned(*SHORT)
    run = start(tmp_path, plan)
    asked = iter(range(10**9))

    def should_stop() -> str | None:
        stop = "interrupted" if terminations else None
        if next(asked) == IN_THE_THIRD_EPOCH:
            signal.raise_signal(signal.SIGTERM)
        return stop

    with pytest.raises(RunEnded, match="stopped in epoch 2"):
        go(run, plan, should_stop)
    assert "main.inside.ckpt" in checkpoints(run)


def test_a_run_that_was_taken_over_is_not_written(tmp_path: Path) -> None:
    def lost() -> None:
        raise ClaimLostError("taken over")

    run = start(tmp_path, planned())
    files = ResumeFiles(run, "main", devices=1)
    files.inside.parent.mkdir()
    point = ResumePoint(run, files, 0.0, lambda: "interrupted")
    trainer: Any = SimpleNamespace(
        world_size=1,
        is_last_batch=False,
        train_dataloader=SimpleNamespace(sampler=Remaining(SequentialBatches(4, 2), 0, 0)),
        save_checkpoint=lambda path: path.write_bytes(b"old news"),
    )
    run.check_claim = lost  # type: ignore[method-assign]
    with pytest.raises(ClaimLostError):
        point.on_train_batch_end(trainer, None, None, None, 0)  # type: ignore[arg-type]
    assert checkpoints(run) == []
