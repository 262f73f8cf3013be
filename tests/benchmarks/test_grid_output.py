"""`plan` and `status` stay readable where a study has hundreds of cells."""

from __future__ import annotations

import dataclasses
import re

import pytest

from benchmarks import cli, grouping, plan_table
from benchmarks.paths import results_dir
from benchmarks.plan import Planned, expand, parse
from benchmarks.store import Store
from domains import registry
from domains.contract import Grid, Together
from domains.timeseries.config import SPEC

AXES = ("recipe.optimizer.lr", "recipe.optimizer.weight_decay")
ASKED = (
    "dataset=JapaneseVowels",
    "attention=standard,quest",
    "recipe.optimizer.lr=0.1,0.2,0.3",
    "recipe.optimizer.weight_decay=0,0.1",
    "seeds=2",
)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-series domain evaluates a grid and trains runs together."""
    spec = dataclasses.replace(
        SPEC, grid=Grid(AXES, ("dataset.folds",), ("test/accuracy",)), together=Together(AXES, 9)
    )
    for module in (plan_table, grouping):
        monkeypatch.setattr(module, "domain_spec", lambda name: spec)
    monkeypatch.setattr(registry, "spec", lambda name: spec)
    monkeypatch.setenv("COLUMNS", "160")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    return [re.sub(r" *│ *| {2,}", "|", line.strip()) for line in lines]


def finish(planned: Planned, state: str, reason: str | None = None) -> None:
    run = Store(results_dir()).prepare(planned.key, planned.config.to_dict())
    run.set_status("running")
    if state == "done":
        cost = {"seconds": 2.0}
        run.write_result({"recipe": "tslib", "budget": "full", "cost": cost})
    run.set_status(state, reason)


@pytest.mark.usefixtures("grid")
def test_plan_shows_a_grid_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    finish(expand(parse(ASKED))[0], "done")
    lines = printed(capsys, "plan", *ASKED, "telemetry=off")
    rows = [line for line in lines if line.startswith("JapaneseVowels")]
    assert rows == [
        "JapaneseVowels|standard|holdout|0,1|done 1, planned 11|22 s|6 cells",
        "JapaneseVowels|quest|holdout|0,1|planned 12|24 s|6 cells",
    ]
    assert "24 runs in 12 cells, 23 to do, one worker needs 46 s for them" in lines
    assert "23 of them are trained together, in 4 groups" in lines


@pytest.mark.usefixtures("grid")
def test_grids_side_by_side_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "plan", *ASKED, "recipe.batch_size=4,8", "attention=quest")
    rows = [line.rpartition("|")[2] for line in lines if line.startswith("JapaneseVowels")]
    assert rows == ["6 cells, recipe.batch_size=4", "6 cells, recipe.batch_size=8"]


@pytest.mark.usefixtures("grid")
def test_a_point_of_a_grid_is_a_cell_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("dataset=JapaneseVowels", "attention=standard", "seed=0")
    (planned,) = expand(parse(asked))
    assert any(line.endswith(f"|{planned.key.hash}") for line in printed(capsys, "plan", *asked))


@pytest.mark.usefixtures("grid")
def test_what_keeps_runs_from_being_trained_together_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "plan", *ASKED, "launcher.together=false")
    assert (
        "each is trained by itself: training together needs launcher.together=true telemetry=off"
        in lines
    )


def test_where_nothing_could_be_trained_together_nothing_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not any("together" in line for line in printed(capsys, "plan", *ASKED))


@pytest.mark.usefixtures("grid")
def test_status_shows_a_grid_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [planned for planned in expand(parse(ASKED)) if planned.key.attention == "quest"]
    for number, planned in enumerate(runs):
        if number % 3:
            finish(planned, "done")
        else:
            finish(planned, "diverged", f"train/loss nan at step {number}")
    lines = printed(capsys, "status")
    assert [line for line in lines if "timeseries" in line] == [
        "|timeseries|JapaneseVowels|quest|6 cells|diverged 4, done 8|"
    ]
    assert sum("train/loss nan" in line for line in lines) == 1
    assert any(line.startswith("JapaneseVowels · quest: 4 diverged. train") for line in lines)
    assert lines[-1] == "8 done, 4 diverged"
