"""From store to rows: what is read, what is refused, what is listed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.export import read_csv, results_csv, runs_csv
from reports.frame import load
from reports.groups import Cell, arrange, missing_command
from reports.rows import ReportError, Row, check_unique, check_unmixed
from tests.reports.build_store import RunSpec, grid, sample_store, write_run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return sample_store(tmp_path / "store")


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | changes))


def test_rows_carry_what_the_files_say(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec("JapaneseVowels", "quest", 4, values={"test/accuracy": 98.0}))
    (row,) = load(tmp_path).rows
    assert (row.domain, row.dataset, row.attention, row.seed) == (
        "timeseries", "JapaneseVowels", "quest", 4,
    )  # fmt: skip
    assert row.metrics["test/accuracy"] == 98.0
    assert row.info["test/accuracy"].unit == "%"
    assert row.metrics["telemetry/max_logit"] > 0
    assert (row.kind, row.protocol_version, row.test_size) == ("real", 1, 370)
    assert row.commit.startswith("0123456789")
    assert row.versions == "python 3.11.9, torch 2.13.0, lightning 2.6.6, numpy 2.4.6"
    assert row.path == f"timeseries/JapaneseVowels/quest/{row.hash}/seed=4"


def test_an_empty_or_absent_store_has_no_rows(tmp_path: Path) -> None:
    assert load(tmp_path).rows == ()
    assert load(tmp_path / "nowhere").rows == ()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("result.json", '{"schema": 1, "dom', "damaged"),
        ("result.json", "[]", "damaged"),
        ("status.json", "", "damaged"),
        ("status.json", '{"schema": 1, "state": "great"}', "great"),
        ("provenance.json", "{", "damaged"),
        ("result.json", '{"schema": 99}', "newer"),
        ("result.json", '{"schema": 1}', "not in the known form"),
    ],
)
def test_what_cannot_be_read_is_listed_and_left_out(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    grid(tmp_path, ["JapaneseVowels"], ["standard", "quest"], 2)
    broken = RunSpec("JapaneseVowels", "quest", 1).path(tmp_path)
    (broken / file).write_text(content)
    frame = load(tmp_path)
    assert len(frame.rows) == 3
    (problem,) = frame.problems
    assert problem.path == str(broken.relative_to(tmp_path))
    assert message in problem.message


def test_done_without_a_result_is_a_problem(tmp_path: Path) -> None:
    (write_run(tmp_path, RunSpec()) / "result.json").unlink()
    frame = load(tmp_path)
    assert frame.rows == ()
    assert len(frame.problems) == 1


def test_a_result_that_lies_in_the_wrong_folder_is_a_problem(tmp_path: Path) -> None:
    edit(write_run(tmp_path, RunSpec(attention="quest")) / "result.json", attention="qnorm")
    assert "but lies under 'quest'" in load(tmp_path).problems[0].message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_primary_metric_that_is_no_number_is_a_problem(tmp_path: Path, value: float) -> None:
    path = write_run(tmp_path, RunSpec()) / "result.json"
    edit(path, metrics={"test/accuracy": value})
    assert "no finite value" in load(tmp_path).problems[0].message


def test_another_metric_that_is_no_number_is_left_out_with_a_note(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(values={"test/nll": float("nan")}))
    (row,) = load(tmp_path).rows
    assert "test/nll" not in row.metrics
    assert row.notes == ("test/nll is nan and left out",)


def test_unfinished_runs_stand_where_their_siblings_do(store: Path) -> None:
    groups = arrange(load(store).rows)
    assert [group.slug for group in groups] == ["timeseries-holdout", "timeseries-tslib"]
    assert [column.dataset for column in groups[0].columns] == [
        "BasicMotions", "Handwriting", "JapaneseVowels",
    ]  # fmt: skip
    assert all(row.kind == "real" for row in groups[0].rows)


def test_a_store_of_failures_alone_has_a_table(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, RunSpec(seed=seed, state="failed", reason="KeyError: 'x'"))
    (group,) = arrange(load(tmp_path).rows)
    assert group.key.kind == "unknown"
    assert group.columns[0].cells["standard"].words() == ["failed"]


def test_unfinished_synthetic_runs_do_not_join_the_real_ones(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(kind="real"))
    write_run(tmp_path, RunSpec(kind="synthetic", state="failed"))
    assert {group.key.kind for group in arrange(load(tmp_path).rows)} == {"real", "synthetic"}


def test_filters(store: Path) -> None:
    chosen = {"dataset": frozenset({"Handwriting"}), "protocol": frozenset({"tslib"})}
    rows = load(store, chosen).rows
    assert {(row.dataset, row.protocol) for row in rows} == {("Handwriting", "tslib")}


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sample"},
        {"protocol_version": 2},
        {"recipe": "other"},
        {"budget": "short"},
        {"model": "transformer_flat"},
    ],
)
def test_what_must_not_be_mixed_gets_a_table_of_its_own(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    write_run(tmp_path, RunSpec(seed=0))
    write_run(tmp_path, RunSpec(seed=1, **change))
    groups = arrange(load(tmp_path).rows)
    assert len(groups) == 2
    assert len({group.slug for group in groups}) == 2


def test_other_content_of_a_data_set_gets_a_column_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(seed=0, fingerprint="sha256:aaaaaaaa"))
    write_run(tmp_path, RunSpec(seed=1, fingerprint="sha256:bbbbbbbb"))
    (group,) = arrange(load(tmp_path).rows)
    assert [column.label for column in group.columns] == [
        "JapaneseVowels (data aaaaaa)", "JapaneseVowels (data bbbbbb)",
    ]  # fmt: skip


def test_mixing_is_refused_whoever_asks(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec())
    (row,) = load(tmp_path).rows
    for change, word in (
        ({"kind": "sample"}, "kinds of data"),
        ({"protocol_version": 2}, "protocols"),
        ({"fingerprint": "sha256:0"}, "different data"),
        ({"budget": "short"}, "budgets"),
    ):
        with pytest.raises(ReportError, match=word):
            check_unmixed([row, replace(row, seed=1, **change)])  # type: ignore[arg-type]


def test_two_runs_for_one_place_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec())
    (row,) = load(tmp_path).rows
    with pytest.raises(ReportError, match="seed 0"):
        check_unique([row, replace(row, hash="other", path="elsewhere")])


def test_overrides_split_tables_and_keep_pairs_together(tmp_path: Path) -> None:
    for rate in (0.001, 0.01):
        recipe = {"recipe": {"name": "tslib", "optimizer": {"lr": rate}}}
        for attention in ("standard", "quest"):
            write_run(tmp_path, RunSpec(attention=attention, overrides=recipe))
    groups = arrange(load(tmp_path).rows)
    assert [group.key.setting for group in groups] == [
        "recipe.optimizer.lr=0.001", "recipe.optimizer.lr=0.01",
    ]  # fmt: skip
    assert all(group.variants == ("standard", "quest") for group in groups)


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (
            {"recipe": {"name": "tslib", "optimizer": {"lr": 0.02}, "batch_size": 4}},
            {
                "recipe.batch_size=unset, recipe.optimizer.lr=0.001",
                "recipe.batch_size=4, recipe.optimizer.lr=0.02",
            },
        ),
        ({"model": {"width": 32}}, {"model.width=128", "model.width=32"}),
        (
            {"trainer": {"precision": "bf16"}},
            {"trainer.precision=32-true", "trainer.precision=bf16"},
        ),
    ],
)
def test_variants_trained_differently_are_not_compared(
    tmp_path: Path, overrides: dict[str, Any], settings: set[str]
) -> None:
    """One hash a variant, but the variants do not share recipe, model or precision."""
    for seed in range(2):
        write_run(tmp_path, RunSpec(attention="standard", seed=seed))
        write_run(tmp_path, RunSpec(attention="quest", seed=seed, overrides=overrides))
    frame = load(tmp_path)
    groups = arrange(frame.rows)
    assert {group.key.setting for group in groups} == settings
    assert sorted(group.variants for group in groups) == [("quest",), ("standard",)]
    assert all(group.key.setting in group.key.details() for group in groups)
    (tmp_path / "runs.csv").write_text(runs_csv(frame.rows))
    (tmp_path / "results.csv").write_text(results_csv(frame.rows))
    assert len(arrange(read_csv(tmp_path).rows)) == 2


def test_a_command_for_missing_runs_names_what_the_model_needs(tmp_path: Path) -> None:
    """Symptom: the command for a cell of the flat read-out made runs of the other one."""
    for readout in ("cls", "flat"):
        overrides = {"model": {"readout": readout}}
        spec = RunSpec(model=f"transformer_{readout}", overrides=overrides)
        write_run(tmp_path, replace(spec, attention="standard", seed=0))
        write_run(tmp_path, replace(spec, attention="standard", seed=1))
        write_run(tmp_path, replace(spec, attention="quest", seed=0))
    groups = arrange(load(tmp_path).rows)
    commands = [
        missing_command(column.cells["quest"], group)
        for group in groups
        for column in group.columns
    ]
    assert sorted(part for c in commands for part in c.split() if part.startswith("model.")) == [
        "model.readout=cls",
        "model.readout=flat",
    ]


def test_what_is_no_part_of_identity_separates_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(attention="standard"))
    noise = {
        "telemetry": {"every": 7}, "logger": {"name": "wandb"}, "launcher": {"workers": 3},
        "trainer": {"precision": "32-true", "devices": 2},
        "dataset": {"name": "JapaneseVowels", "version": "1", "source": "a mirror"},
    }  # fmt: skip
    write_run(tmp_path, RunSpec(attention="quest", options={"a": 1}, overrides=noise))
    (group,) = arrange(load(tmp_path).rows)
    assert (group.variants, group.key.setting) == (("standard", "quest"), "")


def test_a_run_with_an_unreadable_configuration_is_compared_with_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(attention="standard"))
    (write_run(tmp_path, RunSpec(attention="quest")) / "config.yaml").write_text("{")
    groups = arrange(load(tmp_path).rows)
    assert {group.key.setting for group in groups} == {"", "config.yaml=unset"}


def test_many_differences_leave_names_of_files_short(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(attention="standard"))
    model = {"width": 64} | {f"some_long_option_{i}": [i, i] for i in range(40)}
    write_run(tmp_path, RunSpec(attention="quest", overrides={"model": model}))
    slugs = {group.slug for group in arrange(load(tmp_path).rows)}
    assert len(slugs) == 2
    assert all(len(slug) < 150 for slug in slugs)


def test_options_of_the_attention_split_rows(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(attention="standard"))
    for init in (1.0, 2.0):
        write_run(tmp_path, RunSpec(attention="qknorm_ds", options={"init": init}))
    (group,) = arrange(load(tmp_path).rows)
    assert group.variants == ("standard", "qknorm_ds (init=1.0)", "qknorm_ds (init=2.0)")


def test_equal_configurations_with_other_hashes_stay_apart(tmp_path: Path) -> None:
    specs = [RunSpec(overrides={"telemetry": {"every": every}}) for every in (1, 50)]
    for spec in specs:
        write_run(tmp_path, spec)
    (group,) = arrange(load(tmp_path).rows)
    assert set(group.variants) == {f"standard ({spec.hash})" for spec in specs}


def cell(states: list[str | None], seeds: int | None = None) -> Cell:
    rows = {
        seed: Row("d", "s", "quest", "h", seed, state)
        for seed, state in enumerate(states)
        if state is not None
    }
    return Cell("quest", "s", rows, tuple(range(seeds or len(states))))


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (["done"] * 3, []),
        ([None] * 3, ["not run"]),
        (["planned"] * 3, ["not run"]),
        (["oom"] * 3, ["oom"]),
        (["done", "diverged", "done", "diverged", "done"], ["diverged 2/5"]),
        (["done", "done", "done", None, None], ["3/5 seeds"]),
        (["done", "done", "planned"], ["2/3 seeds"]),
        (["done", "failed", None], ["1/3 seeds", "failed 1/3"]),
        (["timeout", "oom"], ["oom 1/2", "timeout 1/2"]),
        (["running", "done"], ["running 1/2"]),
        (["skipped", "skipped"], ["skipped"]),
    ],
)
def test_outcomes_are_words(states: list[str | None], words: list[str]) -> None:
    assert cell(states).words() == words
    assert cell(states).complete == (not words)


def test_only_what_another_run_could_fill_is_missing() -> None:
    states = ["done", "diverged", "skipped", "failed", "oom", "planned", None]
    assert cell(states).missing() == [3, 4, 5, 6]


def test_missing_cells_are_commands(store: Path) -> None:
    group = arrange(load(store).rows)[0]
    column = group.columns[0]
    assert missing_command(column.cells["qknorm_hs"], group) == (
        "python run_all.py run domain=timeseries dataset=BasicMotions attention=qknorm_hs "
        "protocol=holdout recipe=tslib budget=full seed=2"
    )


def test_commands_repeat_the_overrides(tmp_path: Path) -> None:
    recipe = {"recipe": {"name": "tslib", "optimizer": {"lr": 0.01}}}
    write_run(tmp_path, RunSpec(attention="quest"))
    for init in (1.0, 2.0):
        spec = RunSpec(attention="quest", options={"init": init}, overrides=recipe, state="oom")
        write_run(tmp_path, spec)
    groups = {group.key.setting: group for group in arrange(load(tmp_path).rows)}
    group = groups["recipe.optimizer.lr=0.01"]
    command = missing_command(group.columns[0].cells["quest (init=2.0)"], group)
    assert command.endswith(" attention.init=2.0 recipe.optimizer.lr=0.01 seed=0")


def test_csv_files_give_the_same_rows(store: Path, tmp_path: Path) -> None:
    frame = load(store)
    (tmp_path / "runs.csv").write_text(runs_csv(frame.rows))
    (tmp_path / "results.csv").write_text(results_csv(frame.rows))
    again = read_csv(tmp_path)
    assert again.rows == frame.rows
    assert runs_csv(again.rows) == runs_csv(frame.rows)
    assert results_csv(again.rows) == results_csv(frame.rows)


def test_csv_files_of_somebody_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"results\.csv is missing"):
        read_csv(tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ReportError, match="not those of a report"):
        read_csv(tmp_path)


def test_a_note_of_metric_and_runs_stands_once(tmp_path: Path) -> None:
    note = "selected on the test split"
    write_run(tmp_path, RunSpec(protocol="tslib", result={"notes": [note, "another"]}))
    (group,) = arrange(load(tmp_path).rows)
    assert group.notes() == [f"test/accuracy: {note}", "another"]


def test_runs_from_before_a_key_existed_share_a_table_with_later_ones(tmp_path: Path) -> None:
    for attention in ("standard", "quest"):
        write_run(tmp_path, RunSpec("JapaneseVowels", attention, 0))
    (config,) = tmp_path.glob("*/*/quest/*/*/config.yaml")
    raw = yaml.safe_load(config.read_text())
    raw["recipe"] |= {"qk_lr_ratio": 1.0, "qk_constant_decay": True}
    config.write_text(yaml.safe_dump(raw))
    assert {row.setting for row in load(tmp_path).rows} == {""}
