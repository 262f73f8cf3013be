"""Protocol, phases and results; what the configuration files say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from attention import AttentionFactory
from benchmarks.config import RunConfig, compose_run, run_config
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build, execute
from benchmarks.store import RunEnded, Store
from domains import registry
from domains.base import build_optimizer
from domains.contract import OptimizerConfig, PhaseResult, Selection
from domains.graph.domain import DOMAIN

from .graphs import SETS
from .helpers import TASKS, Config, small_set

CONF = Path(__file__).parents[3] / "conf"
TUNED = ("coco_sp", "pascalvoc_sp", "pcqm_contact", "peptides_func", "peptides_struct")

# Layers, width, heads, batch, epochs, warm-up, learning rate, weight decay, pairs or steps.
PUBLISHED = {
    "zinc": (10, 64, 4, 32, 2000, 50, 1e-3, 1e-5, 20),
    "cifar10_sp": (3, 52, 4, 16, 100, 5, 1e-3, 1e-5, 8),
    "pattern": (6, 64, 4, 32, 100, 5, 5e-4, 1e-5, 16),
    "cluster": (16, 48, 8, 16, 100, 5, 5e-4, 1e-5, 10),
    "pascalvoc_sp": (4, 96, 8, 32, 300, 10, 5e-4, 0.0, 10),
    "coco_sp": (4, 96, 8, 32, 300, 10, 5e-4, 0.0, 10),
    "pcqm_contact": (4, 96, 4, 256, 200, 10, 3e-4, 0.0, 10),
    "peptides_func": (4, 96, 4, 128, 200, 10, 3e-4, 0.0, 10),
    "peptides_struct": (4, 96, 4, 128, 200, 10, 3e-4, 0.0, 10),
}
RETUNED = {
    "pascalvoc_sp": (8, 68, 4, 50, 200, 10, 1e-3, 0.0, 10),
    "coco_sp": (8, 68, 4, 50, 200, 10, 1e-3, 0.0, 0),
    "pcqm_contact": (6, 76, 4, 500, 150, 5, 1e-3, 0.0, 0),
    "peptides_func": (6, 76, 4, 200, 250, 5, 1e-3, 0.0, 10),
    "peptides_struct": (8, 64, 4, 200, 250, 5, 1e-3, 0.0, 10),
}

SMALL = (
    "model.layers=1",
    "model.width=16",
    "model.encoding_width=4",
    "recipe.batch_size=4",
    "recipe.schedule.warmup=1",
)


def config(dataset: str, recipe: str = "graphgps") -> RunConfig:
    return run_config(compose_run({"domain": "graph", "dataset": dataset, "recipe": recipe}, {}))


def planned(*arguments: str) -> Planned:
    (found,) = expand(parse(["domain=graph", "seed=1", "synthetic=true", *SMALL, *arguments]))
    return found


def result(selected: int, metric: str = "mae", test: tuple[str, ...] = ()) -> PhaseResult:
    """A finished phase of three epochs."""
    values = [
        {f"val/{metric}": v, f"train/{metric}": v / 2, "test/loss": v} for v in (3.0, 1.0, 2.0)
    ]
    return PhaseResult(
        name="main",
        epochs=3,
        steps=30,
        selected_epoch=selected,
        selected_step=10 * (selected + 1),
        best=1.0,
        metrics={"test/loss": 0.5, f"test/{metric}": 1.25, **dict.fromkeys(test, 0.1)},
        history=tuple(values),
        seconds=1.0,
        train_seconds=1.0,
    )


def test_domain_is_found_by_its_folder():
    assert registry.load("graph") is DOMAIN
    assert set(DOMAIN.spec.protocols) == {"graphgps"}


@pytest.mark.parametrize(
    ("task", "options", "selection"),
    [
        ("graph_regression", {}, Selection("val/mae", "min", decimals=5)),
        # In percent: five decimals of a fraction.
        ("graph_classification", {}, Selection("val/accuracy", "max", decimals=3)),
        ("node_classification", {}, Selection("val/accuracy", "max", decimals=3)),
        ("node_classification", {"metric": "f1"}, Selection("val/f1", "max", decimals=5)),
        ("multilabel", {}, Selection("val/ap", "max", decimals=5)),
        ("contact", {}, Selection("val/mrr", "max", decimals=5)),
    ],
)
def test_the_epoch_is_chosen_on_the_validation_split(task: str, options: Any, selection: Selection):
    cfg = Config(dataset=small_set(task, **options))
    phase = DOMAIN.next_phase(cfg, [])
    assert phase.selection == selection
    assert selection.ties == "earlier"
    assert selection.patience is None, "all epochs run"
    assert phase.test
    assert DOMAIN.next_phase(cfg, [result(1)]) is None


def test_a_budget_caps_the_epochs():
    for limit, expected in ((None, 3), (2, 2), (500, 3)):
        cfg = Config(budget=SimpleNamespace(max_epochs=limit))
        assert DOMAIN.next_phase(cfg, []).max_epochs == expected


def test_a_result_belongs_to_the_chosen_epoch():
    summary = DOMAIN.summarize(Config(), [result(1)])
    assert summary == {
        "test/mae": 1.25,
        "train/mae": 0.5,
        "val/mae": 1.0,
        "test/loss": 0.5,
        "train/epochs_selected": 2.0,
    }


@pytest.mark.parametrize("task", TASKS)
def test_every_number_of_a_result_is_described(task: str):
    cfg = Config(dataset=small_set(task))
    metrics = [metric.name for metric in DOMAIN.metrics(cfg)]
    primary = cfg.dataset.metric
    assert metrics[0] == f"test/{primary}"
    ranked = tuple(name for name in metrics if name.startswith("test/"))
    summary = DOMAIN.summarize(cfg, [result(1, primary, ranked if task == "contact" else ())])
    assert set(summary) == set(metrics)


@pytest.mark.parametrize("name", SETS)
def test_published_recipes(name: str):
    cfg = config(name)
    assert values_of(cfg) == PUBLISHED[name]
    shared = (cfg.recipe.name, cfg.model.name, cfg.recipe.gradient_clip, cfg.recipe.optimizer.name)
    assert shared == ("graphgps", "gps", 1.0, "adamw")
    assert (cfg.recipe.schedule.name, cfg.recipe.schedule.interval) == ("cosine_from_zero", "epoch")
    assert cfg.recipe.optimizer.betas == [0.9, 0.999]
    assert cfg.model.attention_dropout == 0.5
    assert cfg.model.dropout == (0.1 if name == "cluster" else 0.0)
    assert cfg.model.local == ("gine" if name == "zinc" else "gatedgcn")
    assert (cfg.model.norm, cfg.model.activation) == ("batch", "relu")


@pytest.mark.parametrize("name", TUNED)
def test_retuned_recipes(name: str):
    cfg = config(name, "lrgb_tuned")
    assert values_of(cfg) == RETUNED[name]
    assert cfg.model.name == "gps_tuned", "never beside the published numbers of gps"
    assert cfg.model.activation == "gelu"
    assert (cfg.model.encoding == "none") == (name in ("coco_sp", "pcqm_contact"))
    assert (cfg.model.norm == "graph") == (name in ("coco_sp", "pcqm_contact"))
    assert len(cfg.model.node_mean) == (14 if name in ("coco_sp", "pascalvoc_sp") else 0)
    assert cfg.model.head == ("plain" if name.startswith("peptides") else "graphgym")
    with torch.device("meta"):
        DOMAIN.build_module(cfg, AttentionFactory("quest"), DOMAIN.known_sizes(cfg))


def values_of(cfg: RunConfig) -> tuple[float, ...]:
    model, recipe = cfg.model, cfg.recipe
    return (
        model.layers,
        model.width,
        model.heads,
        recipe.batch_size,
        recipe.max_epochs,
        recipe.schedule.warmup,
        recipe.optimizer.lr,
        recipe.optimizer.weight_decay,
        cfg.dataset.lap_pairs or cfg.dataset.rwse_steps,
    )


def test_the_suite_has_the_seeds_of_the_paper():
    runs = expand(parse(["suite=graph_tables"]))
    seeds = {name: {r.config.seed for r in runs if r.key.dataset == name} for name in SETS}
    few = {name for name in SETS if seeds[name] == set(range(4))}
    assert few == set(TUNED)
    assert all(seeds[name] == set(range(10)) for name in SETS if name not in few)


def test_every_published_number_has_a_set_and_a_metric():
    rows = (CONF.parent / "reports" / "published" / "quest_2026.csv").read_text().splitlines()
    header = rows[0].split(",")
    found = set()
    for row in rows[1:]:
        record = dict(zip(header, row.split(","), strict=False))
        if record["domain"] == "graph" and record["metric"] in (
            "mae",
            "accuracy",
            "f1",
            "ap",
            "mrr",
        ):
            cfg = config(record["dataset"])
            primary = DOMAIN.metrics(cfg)[0]
            assert primary.name == f"test/{record['metric']}"
            assert record["model"] == cfg.model.name
            assert primary.higher_is_better == (record["higher_is_better"] == "true")
            found.add(record["dataset"])
    assert found == set(SETS)


def test_every_recipe_says_where_it_comes_from():
    for path in (CONF / "recipe" / "graph").glob("*/*.yaml"):
        first, source = path.read_text().splitlines()[:2]
        assert first == "# @package _global_"
        assert source.startswith("# configs/")
        assert yaml.safe_load(path.read_text())["recipe"]["name"] == path.parent.name


def after(batches: int) -> Callable[[], str | None]:
    seen = iter(range(10**9))
    return lambda: "interrupted" if next(seen) >= batches else None


@pytest.mark.parametrize("dataset", ["zinc", "pcqm_contact"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, dataset: str):
    plan = planned(
        f"dataset={dataset}",
        "attention=quest",
        "budget.max_epochs=3",
        "trainer.checkpoint_every_s=0",
    )
    outcomes = []
    for name, stop in (("whole", None), ("broken", 17)):
        run = Store(tmp_path / name).prepare(plan.key, plan.config.to_dict())
        if stop is not None:
            with pytest.raises(RunEnded):
                execute(run, plan.config.to_dict(), lambda event: None, after(stop))
        execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
        stored = json.loads((run.path / "result.json").read_text())
        outcomes.append((stored["metrics"], [r for r in run.metrics() if "values" in r]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("dataset", "variant", "expected"),
    [
        ("zinc", "standard", [0.914444, 1.042908, 0.385591]),
        ("zinc", "quest", [0.917263, 0.981559, 0.449163]),
        ("pcqm_contact", "standard", [1.270456, 1.260650, 1.036567]),
        ("pcqm_contact", "quest", [1.270486, 1.262189, 1.036626]),
    ],
)
def test_first_steps_keep_their_losses(dataset: str, variant: str, expected: list[float]):
    """Numerics are a contract: a change of these numbers is a change of results."""
    asked = [f"dataset={dataset}", f"attention={variant}", "model.attention_dropout=0.0"]
    if dataset != "zinc":
        asked.append("model.encoding=none")  # eigenvectors may differ from machine to machine
    cfg = planned(*asked).config
    data, module = build(DOMAIN, cfg, DOMAIN.next_phase(cfg, []))
    optimizer = build_optimizer(module.net, OptimizerConfig(lr=1e-2))
    losses = []
    for _, batch in zip(range(3), data.train_dataloader(), strict=False):
        optimizer.zero_grad()
        loss = module.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(expected, abs=2e-4)
