"""A group of runs in one process: what each leaves behind, and how it ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import grouping, together
from benchmarks.grouping import groups, obstacles
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build
from benchmarks.store import Run, RunEnded, Store
from domains.base import BenchmarkModule, build_optimizer
from domains.contract import Grid, Phase, Selection, Together
from domains.timeseries.config import SPEC
from domains.timeseries.domain import TimeSeriesDomain

GRID = Grid(
    ("recipe.optimizer.lr", "recipe.optimizer.weight_decay"), ("dataset.folds",), ("test/accuracy",)
)
BATCHED = dataclasses.replace(
    SPEC, grid=GRID, together=Together(("recipe.optimizer.lr", "recipe.optimizer.weight_decay"), 4)
)
ASKED = (
    "dataset=JapaneseVowels",
    "attention=quest",
    "synthetic=true",
    "telemetry=off",
    "budget.max_epochs=3",
)


def train_one_by_one(
    domain: Any,
    cfgs: Sequence[Any],
    modules: Sequence[BenchmarkModule],
    data: Any,
    phase: Phase,
    epoch_ended: Callable[..., None],
) -> list[dict[str, float]]:
    """Stands in for a batched trainer; a learning rate above 1e20 has a loss that is not finite."""
    optimizers = [
        build_optimizer(module.net, cfg.recipe.optimizer)
        for module, cfg in zip(modules, cfgs, strict=True)
    ]
    for epoch in range(phase.max_epochs or 0):
        batch = next(iter(data.train_dataloader()))
        values = []
        for module, optimizer in zip(modules, optimizers, strict=True):
            loss = module.loss(batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            values.append({"train/loss": loss.item(), "test/accuracy": 50.0})
        epoch_ended(epoch + 1, values)
    return [{"test/accuracy": 50.0, "test/loss": 1.0} for _ in cfgs]


@pytest.fixture(autouse=True)
def batched_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-series domain as one that trains runs together and evaluates a grid."""

    def next_phase(domain: Any, cfg: Any, done: Sequence[Any]) -> Phase | None:
        return None if done else Phase("main", cfg.budget.max_epochs)

    monkeypatch.setattr(TimeSeriesDomain, "spec", BATCHED)
    monkeypatch.setattr(TimeSeriesDomain, "train_together", train_one_by_one)
    monkeypatch.setattr(TimeSeriesDomain, "next_phase", next_phase)
    monkeypatch.setattr(TimeSeriesDomain, "summarize", lambda domain, cfg, done: done[-1].metrics)
    monkeypatch.setattr(grouping, "domain_spec", lambda name: BATCHED)


def planned(*arguments: str) -> list[Planned]:
    return expand(parse([*ASKED, *arguments]))


def prepared(root: Path, plan: Sequence[Planned]) -> list[Run]:
    return [Store(root).prepare(one.key, one.config.to_dict()) for one in plan]


def go(
    runs: Sequence[Run],
    plan: Sequence[Planned],
    stop: Callable[[], str | None] = lambda: None,
    progress: Callable[[dict[str, Any]], None] = lambda event: None,
) -> list[RunEnded | None]:
    return together.execute(runs, [one.config.to_dict() for one in plan], progress, stop)


# Grouping


def sizes(plan: Sequence[Planned]) -> list[int]:
    return [len(group) for group in groups(plan)]


def test_runs_that_differ_in_seed_and_rates_form_groups_of_nearly_equal_size() -> None:
    plan = planned("recipe.optimizer.lr=0.1,0.2,0.3", "seeds=3", "recipe.optimizer.weight_decay=0")
    assert sizes(plan) == [3, 3, 3]
    assert [p.key for group in groups(plan) for p in group] == [p.key for p in plan]
    assert groups(plan) == groups(plan)
    assert sizes(plan[:5]) == [2, 3]


def test_runs_that_differ_in_anything_else_do_not_mix() -> None:
    plan = planned("recipe.batch_size=4,8", "seeds=2")
    for group in groups(plan):
        assert len({one.config.recipe.batch_size for one in group}) == 1
    assert sizes(planned("attention=quest,standard", "seeds=2")) == [2, 2]


def test_variants_that_the_domain_excludes_stay_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert BATCHED.together is not None
    offered = dataclasses.replace(BATCHED.together, excluded=("quest",))
    excluding = dataclasses.replace(BATCHED, together=offered)
    monkeypatch.setattr(grouping, "domain_spec", lambda name: excluding)
    assert sorted(sizes(planned("attention=quest,standard", "seeds=2"))) == [1, 1, 2]
    assert obstacles(planned("attention=quest", "seeds=2", "launcher.together=false")) == []


def test_a_domain_that_does_not_offer_it_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "domain_spec", lambda name: SPEC)
    assert sizes(planned("seeds=3")) == [1, 1, 1]
    assert obstacles(planned("seeds=3", "launcher.together=false")) == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("launcher.together=false", "launcher.together=true"),
        ("telemetry=sampled", "telemetry=off"),
        ("trainer.precision=64-true", "trainer.precision=32-true"),
        ("trainer.compile=true", "trainer.compile=false"),
        ("logger=tensorboard", "logger=none"),
    ],
)
def test_what_forbids_it_is_told(setting: str, named: str) -> None:
    asked = [argument for argument in ASKED if argument.split("=")[0] != setting.split("=")[0]]
    plan = expand(parse([*asked, setting, "seeds=2"]))
    assert sizes(plan) == [1, 1]
    (reason,) = obstacles(plan)
    assert named in reason
    assert obstacles(planned("seeds=2")) == []
    assert obstacles([plan[0]]) == [], "it would be by itself anyway"


# Execution


def test_each_run_of_a_group_leaves_what_a_single_run_leaves(tmp_path: Path) -> None:
    plan = planned("seeds=2", "recipe.optimizer.lr=0.001,0.002")
    runs = prepared(tmp_path, plan)
    events: list[dict[str, Any]] = []
    assert go(runs, plan, progress=events.append) == [None] * 4
    for run, one in zip(runs, plan, strict=True):
        result = json.loads((run.path / "result.json").read_text())
        assert result["seed"] == one.key.seed
        assert result["hash"] == one.key.hash
        assert result["metrics"]["test/accuracy"] == 50.0
        assert result["cost"]["trained_together"] == 4
        assert result["cost"]["epochs"] == result["cost"]["steps"] == 3
        assert any("one of 4 runs trained together" in note for note in result["notes"])
        assert result["grid"] == json.loads(json.dumps(dataclasses.asdict(GRID)))
        assert result["selected"]["rule"] == "last epoch"
        records = run.metrics()
        assert [record["epoch"] for record in records] == [0, 1, 2]
        assert records[-1]["values"]["test/accuracy"] == 50.0
        assert run.provenance()["earlier_code"] == []
        _, fresh = build(TimeSeriesDomain(), one.config, Phase("main", 3))
        weights = torch.load(run.path / "checkpoints" / "main.pt")
        assert weights.keys() == fresh.state_dict().keys()
    losses = [run.metrics()[-1]["values"]["train/loss"] for run in runs]
    assert len(set(losses)) == 4
    assert [(event["epoch"], event["max_epochs"]) for event in events] == [(1, 3), (2, 3), (3, 3)]
    assert events[-1]["seconds_left"] == 0.0


def test_every_model_begins_with_the_weights_of_a_single_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("seeds=3")
    begun: list[dict[str, torch.Tensor]] = []

    def look(domain: Any, cfgs: Any, modules: Any, *rest: Any) -> Any:
        begun.extend(
            {name: tensor.clone() for name, tensor in module.state_dict().items()}
            for module in modules
        )
        return train_one_by_one(domain, cfgs, modules, *rest)

    monkeypatch.setattr(TimeSeriesDomain, "train_together", look)
    go(prepared(tmp_path, plan), plan)
    for one, weights in zip(plan, begun, strict=True):
        _, alone = build(TimeSeriesDomain(), one.config, Phase("main", 3))
        for name, tensor in alone.state_dict().items():
            assert torch.equal(tensor, weights[name]), name


def test_times_are_shares_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(together.time, "perf_counter", lambda: float(next(clock)))
    plan = planned("seeds=2")
    runs = prepared(tmp_path, plan)
    go(runs, plan)
    costs = [json.loads((run.path / "result.json").read_text())["cost"] for run in runs]
    assert [cost["seconds"] for cost in costs] == [1.5, 1.5]  # three epochs of a second each


def test_one_that_diverges_ends_alone(tmp_path: Path) -> None:
    plan = planned("seed=0", "recipe.optimizer.lr=0.001,1e38", "recipe.optimizer.weight_decay=0")
    runs = prepared(tmp_path, plan)
    fine, diverged = go(runs, plan)
    assert fine is None
    assert diverged is not None
    assert diverged.state == "diverged"
    assert diverged.details["epoch"] == 1
    assert [len(run.metrics()) for run in runs] == [3, 1]
    assert not (runs[1].path / "result.json").exists()


def test_a_test_loss_that_is_not_finite_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_step_breaks(*arguments: Any) -> list[dict[str, float]]:
        good, _ = train_one_by_one(*arguments)
        return [good, {**good, "test/loss": float("nan")}]

    monkeypatch.setattr(TimeSeriesDomain, "train_together", last_step_breaks)
    plan = planned("seeds=2")
    runs = prepared(tmp_path, plan)
    assert [ended and ended.state for ended in go(runs, plan)] == [None, "diverged"]
    assert not (runs[1].path / "result.json").exists()


def test_a_request_to_stop_ends_all_but_not_after_the_last_epoch(tmp_path: Path) -> None:
    plan = planned("seeds=2")
    runs = prepared(tmp_path, plan)
    answers = iter([None, "interrupted"])
    with pytest.raises(RunEnded) as ended:
        go(runs, plan, lambda: next(answers))
    assert ended.value.state == "interrupted"
    assert [len(run.metrics()) for run in runs] == [2, 2]
    answers = iter([None, None, "interrupted"])
    assert go(runs, plan, lambda: next(answers)) == [None, None]
    assert [len(run.metrics()) for run in runs] == [3, 3]


@pytest.mark.parametrize("late", [False, True], ids=["while training", "while writing"])
def test_a_run_that_was_taken_over_is_left_alone_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    plan = planned("seeds=2")
    runs = prepared(tmp_path, plan)
    claim = runs[0].claim()
    assert claim is not None
    (name,) = (runs[0].path / "claim").iterdir()

    def taken_over() -> None:
        if name.exists():
            name.rename(name.with_name("another.json"))

    def save_weights(module: BenchmarkModule, path: Path) -> None:
        taken_over()

    if late:
        monkeypatch.setattr(together, "save_weights", save_weights)
    lost, fine = go(runs, plan, (lambda: None) if late else taken_over)
    claim.release()
    assert lost is not None
    assert lost.state == "interrupted"
    assert fine is None
    assert not (runs[0].path / "result.json").exists()
    assert (runs[1].path / "result.json").exists()


def test_what_an_attempt_by_itself_left_is_set_aside(tmp_path: Path) -> None:
    plan = planned("seeds=2")
    runs = prepared(tmp_path, plan)
    (runs[0].path / "phases.json").write_text('{"phases": []}')
    (runs[0].path / "checkpoints").mkdir()
    (runs[0].path / "checkpoints" / "main.resume.ckpt").touch()
    assert go(runs, plan) == [None, None]
    assert (runs[0].path / "phases.json.replaced-1").exists()
    assert (runs[0].path / "checkpoints" / "main.resume.ckpt.replaced-1").exists()


def test_phases_that_select_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selecting = Phase("main", 3, selection=Selection("val/accuracy", "max"))
    monkeypatch.setattr(TimeSeriesDomain, "next_phase", lambda domain, cfg, done: selecting)
    plan = planned("seeds=2")
    with pytest.raises(ValueError, match="without a selection"):
        go(prepared(tmp_path, plan), plan)
