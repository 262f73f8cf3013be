"""Grid studies as files: readings over training, figures, CSV and the way back, the manifest."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from rich.console import Console

from reports import cli
from reports.export import read_csv
from reports.frame import Frame, load
from reports.grid import courses, figures
from reports.grid.evaluation import StudyStats, evaluate_study
from reports.grid.probes import MAX_EPOCHS, Probes, read
from reports.grid.studies import Study, arrange_studies, study_key
from reports.plots import Picture
from reports.report import build, text_files
from reports.write import contents
from tests.reports.build_grid import (
    DECAYS,
    LRS,
    OUTCOMES,
    GridRun,
    small_store,
    study,
    write_grid_run,
    write_runs,
)
from tests.reports.build_store import grid as ordinary_store

PAIR = ("standard", "quest")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def written(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "report"
    assert cli.main([f"results={small}", f"output={out}"]) == 0
    return out


def studies(root: Path) -> list[Study]:
    return arrange_studies(load(root).rows)


def evaluated(root: Path) -> StudyStats:
    return evaluate_study(studies(root)[0])


# Readings


def test_readings_begin_before_training_and_end_after_the_last_epoch(small: Path) -> None:
    main = studies(small)[0]
    found = read(small, main.rows)
    row = next(row for row in main.rows if row.done)
    lines = (small / row.path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])["values"]["probe/key_norm_biased"]
    assert found.final[row.run_key]["key_norm_biased"] == pytest.approx(last, rel=1e-5)
    course = next(iter(found.courses.values()))
    assert course.epochs == tuple(range(7))
    assert course.curves["key_norm_biased"].mean[0] == pytest.approx(2.6)
    total = sum(c.runs for (key, *_), c in found.courses.items() if key == main.key)
    assert total == sum(row.done for row in main.rows)


def test_long_curves_are_thinned_and_keep_both_ends(tmp_path: Path) -> None:
    write_grid_run(tmp_path, GridRun("quest", epochs=100))
    (course,) = read(tmp_path, load(tmp_path).rows).courses.values()
    assert len(course.epochs) == MAX_EPOCHS
    assert (course.epochs[0], course.epochs[-1]) == (0, 100)


def test_runs_without_readings_are_no_reason_to_fail(tmp_path: Path) -> None:
    write_runs(tmp_path, study(PAIR, LRS[:2], DECAYS[:2], 1, 1, epochs=2))
    for path in tmp_path.rglob("metrics.jsonl"):
        path.unlink()
    report = build(load(tmp_path), "command")
    names = [picture.name for picture in report.grids.pictures()]
    assert names == ["toy-paper-grid_success", "toy-paper-grid_accuracies"]
    assert "grid_curves.csv" in text_files(report)


# Figures


def test_figures_are_deterministic_whole_and_described(small: Path) -> None:
    def drawn() -> list[Picture]:
        main = studies(small)[0]
        stats, probes = evaluate_study(main), read(small, main.rows)
        made = [
            figures.heat_maps(stats),
            figures.accuracies(stats),
            courses.norms(stats, probes),
            courses.attention(stats, probes),
        ]
        return [picture for picture in made if picture]

    first = drawn()
    assert len(first) == 4
    assert first == drawn()
    for picture in first:
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg")
        assert len(picture.alt) > 30
    numbers = b"".join(first[0].svg.split())
    for own in evaluated(small).variants:
        for percent in own.cells.flat:
            assert f">{percent:.0f}</text>".encode() in numbers


def test_numbers_on_cells_are_readable() -> None:
    """Contrast of the ink that is taken is at least 4 : 1 wherever it is taken."""

    def light(color: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    for percent in range(101):
        ink = figures.ON_DARK if percent >= figures.DARK_FROM else figures.ON_LIGHT
        pair = sorted((light(to_rgb(ink)), light(figures.RAMP(percent / 100))))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4, percent


def test_a_single_line_is_no_heat_map(tmp_path: Path) -> None:
    write_runs(tmp_path, study(("quest",), LRS[:2], DECAYS[:1], 1, 2, epochs=2))
    assert figures.heat_maps(evaluated(tmp_path)) is None


# Files


def test_files_are_remade_from_csv_byte_for_byte(written: Path, tmp_path: Path) -> None:
    assert cli.main([f"from={written}", f"output={tmp_path / 'again'}"]) == 0
    names = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
    assert {"grid_runs.csv", "grid_studies.csv", "grid_curves.csv"} <= names
    assert "runs.csv" not in names
    for name in names - {"manifest.json"}:
        assert (tmp_path / "again" / name).read_bytes() == (written / name).read_bytes(), name


def test_a_report_from_csv_can_be_filtered(written: Path) -> None:
    frame = read_csv(written).filtered({"attention": frozenset({"quest"})})
    text = text_files(build(frame, "command", draw=False))["summary.md"]
    assert "| quest | " in text
    assert "| standard | " not in text


def test_grid_and_other_runs_share_a_report(small: Path, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    ordinary_store(store, ["JapaneseVowels"], PAIR, 2, epochs=2)
    made = text_files(build(load(store), "command", draw=False))
    for name, text in made.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert {"runs.csv", "grid_runs.csv"} <= made.keys()
    assert text_files(build(read_csv(tmp_path / "files"), "command", draw=False)) == made


def test_the_manifest_names_the_runs_of_every_file(written: Path) -> None:
    manifest = json.loads((written / "manifest.json").read_text())
    names = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
    assert manifest["files"].keys() | {"manifest.json"} == names
    for name in manifest["files"].values():
        assert name == "all" or set(manifest["run_sets"][name]) <= manifest["runs"].keys()
    folder = GridRun("quest", LRS[1], DECAYS[1]).path(Path()).parent
    assert manifest["runs"][str(folder)] == {"state": "done", "seeds": "0-2"}


def test_a_report_over_a_whole_grid_stays_small(small: Path) -> None:
    """3,000 runs made from one that is in the store, with curves for every outcome."""
    frame = load(small)
    example = next(row for row in frame.rows if row.done)
    course = next(iter(read(small, frame.rows).courses.values()))
    variants = ("standard", "quest", "qnorm", "qknorm")
    rows = []
    for run in study(variants):
        shares = {f"test/{name}": 100.0 * (name == run.outcome()) for name in OUTCOMES}
        assert example.grid is not None
        place = replace(example.grid, values=(f"{run.lr:g}", f"{run.decay:g}", str(run.data_seed)))
        own = {"attention": run.attention, "variant": run.attention, "hash": run.hash}
        path = str(run.path(Path()))
        metrics = {**example.metrics, **shares}
        rows.append(
            replace(
                example,
                seed=run.seed,
                fingerprint="",
                path=path,
                metrics=metrics,
                grid=place,
                **own,
            )
        )
    courses_ = {(study_key(rows[0]), v, o): course for v in variants for o in OUTCOMES}
    report = build(Frame(tuple(rows), probes=Probes({}, courses_)), "command")
    files = contents(report)
    assert len(files["grid_runs.csv"].splitlines()) == 3001
    assert len(report.grids.studies[0].pictures) == 4
    assert len(files["report.html"]) < 1_500_000
    assert sum(len(files[name]) for name in files if not name.startswith("figures/")) < 2_000_000


def test_terminal_summary(small: Path) -> None:
    console = Console(width=110, record=True, file=io.StringIO())
    cli.print_summary(small, console, domain="toy")
    text = console.export_text()
    assert "toy, protocol paper: success, %, 3 learning rates × 2 weight decays" in text
    assert "53, diverged 1/54, failed 1/54" in text
    assert "recipe.qk_lr_ratio=0.1" in text
