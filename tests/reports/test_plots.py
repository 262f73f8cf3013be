"""Figures: deterministic, readable, and drawn from no more files than needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.store import Run
from reports import critical, curves, plots
from reports.analysis import GroupStats, evaluate, views
from reports.frame import load
from reports.groups import arrange
from reports.report import build
from reports.rows import PREFERRED_ORDER
from tests.reports.build_store import RunSpec, grid, sample_store, write_run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return sample_store(tmp_path)


def evaluated(store: Path) -> list[GroupStats]:
    return [evaluate(group) for group in arrange(load(store).rows)]


def all_pictures(store: Path) -> list[plots.Picture]:
    tables = evaluated(store)
    column = tables[0].group.columns[2]
    found = curves.read(store, column, tables[0].group.variants)
    drawn = [
        plots.values(tables[0]),
        plots.cost_and_quality(tables[0]),
        curves.telemetry(tables[0].group, column, found),
        curves.learning(tables[0].group, column, found),
        plots.forest(views(tables)[0][0]),
    ]
    assert all(drawn)
    return [picture for picture in drawn if picture]


def test_equal_data_give_equal_bytes(store: Path) -> None:
    first, second = all_pictures(store), all_pictures(store)
    assert first == second


def test_figures_are_whole_and_described(store: Path) -> None:
    for picture in all_pictures(store):
        root = ElementTree.fromstring(picture.svg)
        assert root.tag.endswith("svg")
        assert b"<dc:date>" not in picture.svg
        assert picture.png.startswith(b"\x89PNG")
        assert len(picture.alt) > 30


def test_words_stand_where_a_value_is_missing(store: Path) -> None:
    picture = plots.values(evaluated(store)[0])
    assert picture is not None
    assert b">oom</text>" in picture.svg


def test_each_variant_keeps_its_colour() -> None:
    every = [plots.color(name, PREFERRED_ORDER) for name in plots.FIXED]
    assert len(set(every)) == len(plots.PALETTE)
    assert plots.color("quest", ["quest"]) == plots.color("quest", ["standard", "quest", "new"])
    assert plots.color("new", ["standard", "quest", "new"]) not in (
        plots.color("standard", []), plots.color("quest", []),
    )  # fmt: skip


@pytest.mark.parametrize("count", [4, 9, 18, len(PREFERRED_ORDER)])
def test_no_two_variants_look_alike(count: int) -> None:
    """In a small table by their colour, in a large one by colour and marker."""
    for variants in (PREFERRED_ORDER[:count], PREFERRED_ORDER[-count:]):
        colors = [plots.color(name, variants) for name in variants]
        looks = {(c, plots.marker(v, variants)) for c, v in zip(colors, variants, strict=True)}
        assert len(looks) == count
        assert len(set(colors)) == min(count, len(plots.PALETTE))


def test_names_in_the_order_of_tables_are_those_of_variants() -> None:
    from attention import registry

    assert set(PREFERRED_ORDER) <= set(registry.names())
    assert PREFERRED_ORDER[:9] == registry.names()[:9]


def test_critical_differences_are_drawn_only_where_something_could_be_rejected(
    tmp_path: Path,
) -> None:
    variants = ["standard", "quest", "qknorm_ds"]
    grid(tmp_path, [f"Set{number}" for number in range(7)], variants, 2, metrics_log=False)
    (view,), _ = views(evaluated(tmp_path))
    picture = critical.critical_difference(view)
    assert picture is not None
    assert b"quest (" in picture.svg
    grid(tmp_path / "few", ["A", "B"], variants, 2, metrics_log=False)
    (view,), _ = views(evaluated(tmp_path / "few"))
    assert critical.critical_difference(view) is None


def test_what_a_figure_has_no_room_for_is_named(tmp_path: Path) -> None:
    """Symptom: of fourteen variants nine were drawn, and nothing said so."""
    variants = [*PREFERRED_ORDER[: curves.MAX_VARIANTS], "sink", "gated"]
    grid(tmp_path, ["JapaneseVowels"], variants, curves.MAX_SEEDS + 1)
    (table,) = evaluated(tmp_path)
    column = table.group.columns[0]
    found = curves.read(tmp_path, column, table.group.variants)
    picture = curves.telemetry(table.group, column, found)
    assert picture is not None
    left = table.group.variants[curves.MAX_VARIANTS :]
    assert f"Not drawn: {' and '.join(left)}. Of each variant, the first 5 seeds" in picture.alt
    assert len(found["max_logit"]) == curves.MAX_VARIANTS


@pytest.mark.parametrize("draw", [plots.values, plots.cost_and_quality])
def test_data_sets_beyond_the_panels_are_named(tmp_path: Path, draw: Any) -> None:
    grid(tmp_path, [f"Set{n:02}" for n in range(13)], ["standard", "quest"], 1, metrics_log=False)
    picture = draw(evaluated(tmp_path)[0])
    assert picture is not None
    assert "Set12." in picture.alt
    assert picture.alt.count("Set") == {plots.values: 1, plots.cost_and_quality: 7}[draw]


def test_repeated_records_after_a_resume_count_once(tmp_path: Path) -> None:
    path = write_run(tmp_path, RunSpec(epochs=3)) / "metrics.jsonl"
    record = {"phase": "main", "epoch": 2, "step": 42, "values": {"val/accuracy": 1.0}}
    path.write_text(path.read_text() + json.dumps(record) + "\n")
    (table,) = evaluated(tmp_path)
    found = curves.read(tmp_path, table.group.columns[0], ["standard"])
    assert found["val/accuracy"]["standard"][42] == [1.0]


def test_curves_are_of_the_last_phase(tmp_path: Path) -> None:
    path = write_run(tmp_path, RunSpec(epochs=3)) / "metrics.jsonl"
    fold = {"phase": "fold0", "epoch": 0, "step": 7, "values": {"val/accuracy": 1.0}}
    path.write_text(json.dumps(fold) + "\n" + path.read_text())
    (table,) = evaluated(tmp_path)
    found = curves.read(tmp_path, table.group.columns[0], ["standard"])
    assert 7 not in found["val/accuracy"]["standard"]


def test_telemetry_is_reduced_over_layers_and_heads(tmp_path: Path) -> None:
    path = write_run(tmp_path, RunSpec(epochs=1)) / "metrics.jsonl"
    layers = {"a": {"max_logit": [1.0, 9.0], "entropy": [1.0, 2.0]}, "b": {"max_logit": [3.0]}}
    path.write_text(json.dumps({"phase": "main", "epoch": 0, "step": 5, "telemetry": layers}))
    (table,) = evaluated(tmp_path)
    found = curves.read(tmp_path, table.group.columns[0], ["standard"])
    assert found["max_logit"]["standard"] == {5: [9.0]}
    assert found["entropy"]["standard"] == {5: [1.5]}


def test_runs_without_curves_are_no_reason_to_fail(tmp_path: Path) -> None:
    grid(tmp_path, ["JapaneseVowels"], ["standard", "quest"], 2, metrics_log=False)
    report = build(load(tmp_path), "command")
    assert report.sections[0].curves == ()


def test_large_stores_have_only_a_few_files_of_curves_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MAX_FIGURES", 2)
    names = [f"Set{number}" for number in range(4)]
    grid(tmp_path, names, ["standard", "quest"], curves.MAX_SEEDS + 2, epochs=2)
    read: list[Path] = []
    original = Run.metrics
    monkeypatch.setattr(Run, "metrics", lambda run: read.append(run.path) or original(run))
    report = build(load(tmp_path), "command")
    assert len(read) == curves.MAX_FIGURES * 2 * curves.MAX_SEEDS
    assert "first 2 columns" in report.curves_note
