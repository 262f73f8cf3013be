"""From the command line to runs: what is asked for, refused, and skipped."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from attention import registry
from benchmarks import config as configuration
from benchmarks.plan import Planned, expand, parse, pending
from benchmarks.store import Store
from domains import registry as domains


def plan(*arguments: str) -> list[Planned]:
    return expand(parse(arguments))


def only(*arguments: str) -> Planned:
    found = plan("attention=standard", "seed=0", "dataset=JapaneseVowels", *arguments)
    assert len(found) == 1
    return found[0]


def test_quick_suite_is_five_variants_two_sets_three_seeds() -> None:
    runs = plan("suite=quick")
    assert len(runs) == 5 * 2 * 3
    assert {run.config.protocol for run in runs} == {"holdout"}
    assert {run.key.dataset for run in runs} == {"JapaneseVowels", "BasicMotions"}


def test_a_domain_alone_means_its_published_comparison() -> None:
    runs = plan("domain=timeseries")
    assert len({run.key.dataset for run in runs}) == 10
    assert {run.key.seed for run in runs} == {0, 1, 2, 3, 4}


def test_smoke_covers_every_variant() -> None:
    runs = plan("suite=smoke")
    assert {run.key.attention for run in runs} == set(registry.names())
    assert all(run.config.synthetic for run in runs)


@pytest.mark.parametrize("suite", configuration.choices("suite"))
def test_every_suite_plans(suite: str) -> None:
    assert plan(f"suite={suite}")


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group in ("dataset", "recipe", "budget", "trainer", "telemetry", "launcher", "logger")
        for name in configuration.choices(group, "timeseries")
    ],
)
def test_every_yaml_composes(group: str, name: str) -> None:
    assert plan("domain=timeseries", "attention=standard", "seed=0", f"{group}={name}")


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The domain compares over a grid of learning rates and data splits."""
    real = configuration.compose_run
    sweep = {"recipe.optimizer.lr": [0.001, 0.003], "recipe.optimizer.weight_decay": [0, 0.1]}

    def compose_run(*arguments: Any) -> DictConfig:
        composed = copy.deepcopy(real(*arguments))
        OmegaConf.update(composed, "bench.sweep", sweep, force_add=True)
        return composed

    monkeypatch.setattr(configuration, "compose_run", compose_run)


@pytest.mark.usefixtures("swept")
def test_a_whole_domain_is_swept_over_its_grid() -> None:
    runs = plan("domain=timeseries", "attention=quest", "seeds=2")
    assert len(runs) == 10 * 4 * 2
    assert {run.config.recipe.optimizer.weight_decay for run in runs} == {0.0, 0.1}


@pytest.mark.usefixtures("swept")
def test_an_axis_asked_for_replaces_that_of_the_grid() -> None:
    runs = plan("domain=timeseries", "attention=quest", "seed=0", "recipe.optimizer.lr=0.01")
    assert len(runs) == 10 * 2
    assert {run.config.recipe.optimizer.lr for run in runs} == {0.01}


@pytest.mark.usefixtures("swept")
def test_a_named_data_set_is_not_swept() -> None:
    assert only().key.hash == HASH_OF_STANDARD_ON_JAPANESE_VOWELS
    smoked = plan("suite=smoke")
    options = {(run.key.domain, str(run.config.attention)) for run in smoked}
    assert len(smoked) == len(options), "each variant in a domain once, unless its options differ"
    pairs = {(run.key.domain, run.key.attention) for run in smoked}
    assert pairs == {(d, variant) for d in domains.names() for variant in registry.names()}


def test_a_domain_can_choose_its_telemetry_and_the_command_line_overrules_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: Hydra let a domain override no group that stood below it in the defaults."""
    shutil.copytree(configuration.CONF_DIR, tmp_path / "conf")
    file = tmp_path / "conf" / "domain" / "timeseries.yaml"
    override = '  - _self_\n  - override /telemetry: "off"\n'
    file.write_text(file.read_text().replace("  - _self_\n", override))
    monkeypatch.setattr(configuration, "CONF_DIR", tmp_path / "conf")
    configuration._compose.cache_clear()
    try:
        assert only().config.telemetry.mode == "off"
        assert only("telemetry=exact").config.telemetry.mode == "exact"
    finally:
        configuration._compose.cache_clear()


def test_a_recipe_may_have_a_file_for_each_data_set() -> None:
    """Named by its folder; the data set chooses the file, also for the default recipe."""
    shared = ["domain=graph", "attention=standard", "seed=0"]
    chosen = {
        name: plan(f"dataset={name}", *recipe, *shared)[0].config.recipe
        for name, *recipe in (("zinc",), ("pascalvoc_sp",), ("peptides_func", "recipe=lrgb_tuned"))
    }
    assert {name: recipe.name for name, recipe in chosen.items()} == {
        "zinc": "graphgps",
        "pascalvoc_sp": "graphgps",
        "peptides_func": "lrgb_tuned",
    }
    assert [recipe.max_epochs for recipe in chosen.values()] == [2000, 300, 250]
    with pytest.raises(
        ValueError, match=r"recipe=lrgb_tuned is for these .* not for zinc: coco_sp"
    ):
        plan("domain=graph", "recipe=lrgb_tuned")


def test_seed_zero_is_a_seed() -> None:
    assert only("seed=0").config.seed == 0


def test_a_seed_asked_for_replaces_those_of_a_suite() -> None:
    assert {run.key.seed for run in plan("suite=quick", "seed=7")} == {7}


def test_the_seed_is_not_part_of_the_hash() -> None:
    runs = plan("dataset=JapaneseVowels", "attention=quest", "seed=0,7")
    assert len({run.key.hash for run in runs}) == 1
    assert [run.config.seed for run in runs] == [0, 7]


@pytest.mark.parametrize(
    "neutral",
    [
        "launcher.workers=7",
        "logger=tensorboard",
        "telemetry=off",
        "trainer.accelerator=cpu",
        "trainer.checkpoint_every_s=1",
        "trainer.compile=true",
    ],
)
def test_what_changes_no_number_does_not_change_the_hash(neutral: str) -> None:
    assert only(neutral).key == only().key


@pytest.mark.parametrize(
    "computing",
    [
        "recipe.optimizer.lr=0.002",
        "recipe.batch_size=8",
        "recipe.qk_lr_ratio=3",
        "model.layers=2",
        "protocol=tslib",
        "budget=short",
        "synthetic=true",
        "trainer.precision=bf16-mixed",
    ],
)
def test_what_changes_a_number_changes_the_hash(computing: str) -> None:
    assert only(computing).key.hash != only().key.hash


def test_a_hash_stays_the_same_over_releases() -> None:
    """A change here orphans every stored result: raise a protocol's version instead."""
    assert only().key.hash == HASH_OF_STANDARD_ON_JAPANESE_VOWELS


HASH_OF_STANDARD_ON_JAPANESE_VOWELS = "79db576136f6"


def test_options_reach_the_variants_that_have_them() -> None:
    runs = plan(
        "dataset=JapaneseVowels", "seed=0", "attention=quest,elliptical", "attention.scaling=mean"
    )
    options: dict[str, dict[str, Any]] = {r.key.attention: r.config.attention.options for r in runs}
    assert options["elliptical"]["scaling"] == "mean"
    assert "scaling" not in options["quest"]


def test_a_comma_sweeps() -> None:
    runs = plan(
        "dataset=JapaneseVowels",
        "seed=0",
        "attention=standard",
        "recipe.optimizer.lr=0.001,0.003",
        "protocol=holdout,tslib",
    )
    assert len({run.key.hash for run in runs}) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["attention=quset"], "did you mean 'quest'"),
        (["domain=timeserie"], "Did you mean 'timeseries'"),
        (["suite=quik"], "Did you mean 'quick'"),
        (["budget=ful"], "Did you mean 'full'"),
        (["recipe=tslip"], "Did you mean 'tslib'"),
        (["protocol=hold-out"], "Did you mean 'holdout'"),
        (["recipe.optimizer.lrr=1"], "Did you mean 'recipe.optimizer.lr'"),
        (["lr=1"], "Did you mean 'recipe.optimizer.lr'"),
        (["readout=flat"], "Did you mean 'model.readout'"),
        (["attention=elliptical", "attention.scalng=mean"], "Did you mean 'attention.scaling'"),
        (["attention=quest", "attention.scaling=mean"], "Options of quest: none"),
        (["model.layers=three"], "model"),
        (["seeds=0"], "positive"),
        (["seeds=true"], "positive"),
        (["seed=-1"], "whole number"),
        (["seed=1.5"], "whole number"),
        (["seed=[0,1]"], "whole number"),
        (["synthetic=no"], "synthetic='no' must be bool"),
        (["dataset=null"], "must be a name"),
        (["dataset=[JapaneseVowels,BasicMotions]"], "must be a name"),
        (["dataset=JapaneseVowls"], "Did you mean 'JapaneseVowels'"),
        (["dataset=japanesevowels"], "Did you mean 'JapaneseVowels'"),
        (["~seed=3"], r"without \+ or ~"),
        (["model=null"], "several keys"),
        (["budget.max_epochs=0"], "at least 1"),
        (["telemetry.every=0"], "at least 1"),
        (["telemetry.mode=exat"], "Did you mean 'exact'"),
        (["trainer.precision=32"], "32-true"),
        (["trainer.devices=0"], "at least 1"),
        (["trainer.strategy=fdsp"], "Did you mean 'fsdp'"),
        (["trainer.strategy=fsdp"], r"trainer\.devices=1 .* allowed with it: 2 and more"),
        (
            ["trainer.strategy=fsdp", "trainer.devices=2", "trainer.compile=true"],
            r"trainer\.compile=True .* allowed with it: False",
        ),
        (
            ["trainer.strategy=fsdp", "trainer.devices=2", "trainer.precision=16-mixed"],
            r"trainer\.precision=16-mixed .* allowed with it: bf16-mixed",
        ),
        (["launcher.workers=0"], "launcher.workers=0"),
        (["trainer.compile=true,false"], "asked for twice"),
        (["seeds=2", "seed=1"], "not both"),
        (["quest"], "key=value"),
    ],
)
def test_a_wrong_word_is_refused_with_the_right_one(arguments: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        plan(*arguments)


def test_any_other_uea_set_is_taken_by_name() -> None:
    assert only("dataset=Epilepsy").config.dataset.name == "Epilepsy"


def test_only_final_outcomes_are_settled(tmp_path: Any) -> None:
    runs = plan("dataset=JapaneseVowels", "attention=standard", "seeds=4")
    store = Store(tmp_path)
    for planned, state in zip(runs, ["diverged", "failed", "interrupted"], strict=False):
        run = store.prepare(planned.key, planned.config.to_dict())
        run.set_status("running")
        run.set_status(state)
    assert [p.key.seed for p in pending(runs, store)] == [1, 2, 3]
    assert [p.key.seed for p in pending(runs, store, retry=["diverged"])] == [0, 1, 2, 3]
