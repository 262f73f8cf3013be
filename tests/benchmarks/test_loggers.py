"""Optional mirrors of the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cli, loggers
from tests.benchmarks.test_runner import go, planned, start


def test_tensorboard_gets_what_the_store_gets(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plan = planned("budget.max_epochs=2", "logger=tensorboard")
    run = start(tmp_path, plan)
    go(run, plan)
    events = EventAccumulator(str(run.path / "tensorboard" / "main"))
    events.Reload()
    mirrored = [event.value for event in events.Scalars("val/accuracy")]
    stored = [r["values"]["val/accuracy"] for r in run.metrics() if "values" in r]
    assert mirrored == pytest.approx(stored)


def test_a_logger_that_is_not_installed_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="logging"):
        loggers.require("wandb")
    monkeypatch.undo()
    assert cli.main(["run", "dataset=JapaneseVowels", "logger.name=wandbb"]) == 2
    assert "Did you mean 'wandb'" in capsys.readouterr().err
