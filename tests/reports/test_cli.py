"""The command: arguments, exit codes, output that is whole or not there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from reports import cli, write
from tests.reports.build_store import RunSpec, grid, sample_store, write_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return grid(tmp_path / "store", ["JapaneseVowels"], ["standard", "quest"], 2, epochs=3)


def written(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_a_report_is_written_into_the_store(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESULTS_DIR", str(store))
    assert cli.main([]) == 0
    files = written(store / "report")
    assert {
        "report.html", "summary.md", "results.csv", "runs.csv", "manifest.json",
        "tables/timeseries-holdout_quality.md", "tables/timeseries-holdout_quality.tex",
        "tables/timeseries-holdout_quality.csv", "figures/timeseries-holdout_values.svg",
        "figures/timeseries-holdout_values.png",
    } <= files  # fmt: skip
    assert "4 finished of 4 runs" in capsys.readouterr().out
    assert cli.main([]) == 0, "a report inside the store is no run, and is replaced"
    assert written(store / "report") == files


def test_the_manifest_names_the_runs_of_every_file(store: Path, tmp_path: Path) -> None:
    assert cli.main([f"results={store}", f"output={tmp_path / 'out'}"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(manifest["files"]) | {"manifest.json"} == written(tmp_path / "out")
    for name in manifest["files"].values():
        assert name == "all" or set(manifest["run_sets"][name]) <= set(manifest["runs"])
    run = next(iter(manifest["runs"].values()))
    assert run["commit"].startswith("0123")
    assert run["fingerprint"].startswith("sha256:")
    assert manifest["command"] == "python run_all.py report"
    assert str(tmp_path) not in json.dumps(manifest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["datset=x"], "did you mean 'dataset'"),
        (["html"], "unknown argument 'html'"),
        (["dataset"], "needs a value"),
        (["dataset=a", "dataset=b"], "given twice"),
        (["from=x"], "needs output="),
        (["from=x", "output=y", "results=z"], "exclude each other"),
    ],
)
def test_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"{key}=" in out for key in cli.KEYS)


def test_nothing_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([f"results={tmp_path}"]) == 3
    assert "nothing to report yet" in capsys.readouterr().err
    write_run(tmp_path, RunSpec())
    assert cli.main([f"results={tmp_path}", "dataset=Heartbeat"]) == 3
    assert "matches dataset=Heartbeat" in capsys.readouterr().err
    assert written(tmp_path / "report") == set()


def test_damage_is_told_and_the_rest_reported(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = RunSpec("JapaneseVowels", "quest", 1).path(store) / "result.json"
    broken.write_text("{")
    assert cli.main([f"results={store}", f"output={tmp_path / 'out'}"]) == 0
    assert "left out timeseries/JapaneseVowels/quest/" in capsys.readouterr().err
    assert "could not be read" in (tmp_path / "out" / "report.html").read_text()


def test_a_report_from_csv_files_equals_the_one_from_the_store(store: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli.main([f"results={store}", f"output={first}"]) == 0
    assert cli.main([f"from={first}", f"output={second}"]) == 0
    for name in written(second) - {"report.html", "manifest.json"}:
        assert (second / name).read_bytes() == (first / name).read_bytes(), name


def test_an_interrupted_write_leaves_the_old_report(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert cli.main([f"results={store}", f"output={out}"]) == 0
    before = written(out)
    original = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(target) == out and not Path(source).name == out.name:
            raise OSError("disk trouble")
        original(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    assert cli.main([f"results={store}", f"output={out}"]) == 3
    assert written(out) == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_folder_with_other_things_in_it_is_left_alone(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    assert cli.main([f"results={store}", f"output={out}"]) == 3
    assert "thesis.tex" in capsys.readouterr().err
    assert written(out) == {"thesis.tex"}


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    write.replace_folder(tmp_path / "out", {"results.csv": b"1", "tables/a.md": b"2"})
    write.replace_folder(tmp_path / "out", {"results.csv": b"3"})
    assert written(tmp_path) == {"out/results.csv"}


@pytest.mark.parametrize("state", ["failed", "oom", "diverged", "planned", "skipped"])
def test_stores_without_a_single_result(tmp_path: Path, state: str) -> None:
    for seed in range(2):
        write_run(tmp_path / "store", RunSpec(seed=seed, state=state, reason="because"))
    out = tmp_path / "out"
    assert cli.main([f"results={tmp_path / 'store'}", f"output={out}"]) == 0
    word = "not run" if state == "planned" else state
    assert word in (out / "summary.md").read_text()


@pytest.mark.parametrize(("attentions", "seeds"), [(["standard"], 3), (["quest"], 1)])
def test_stores_with_nothing_to_compare(tmp_path: Path, attentions: list[str], seeds: int) -> None:
    grid(tmp_path / "store", ["JapaneseVowels"], attentions, seeds, epochs=2)
    out = tmp_path / "out"
    assert cli.main([f"results={tmp_path / 'store'}", f"output={out}"]) == 0
    assert "Nothing to compare" in (out / "report.html").read_text()


def test_terminal_summary(tmp_path: Path) -> None:
    sample_store(tmp_path)
    console = Console(width=110, record=True, file=io.StringIO())
    cli.print_summary(tmp_path, console, dataset="JapaneseVowels,Handwriting")
    text = console.export_text()
    assert "JapaneseVowels, holdout: test/accuracy, %, ↑" in text
    assert "selected on the test split" in text
    assert "oom" in text
    assert "BasicMotions" not in text


def test_refresh_prints_and_writes_only_what_changed(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESULTS_DIR", str(store))
    cli.refresh()
    assert "JapaneseVowels, holdout" in capsys.readouterr().out
    page = store / "report" / "report.html"
    first = page.stat().st_mtime_ns
    cli.refresh()
    assert "(unchanged)" in capsys.readouterr().out
    assert page.stat().st_mtime_ns == first
    write_run(store, RunSpec(attention="quest", seed=7, epochs=2))
    cli.refresh()
    assert "(unchanged)" not in capsys.readouterr().out
    assert page.stat().st_mtime_ns > first


def test_the_command_imports_nothing_heavy() -> None:
    code = "import sys, reports.cli; print(*(m.partition('.')[0] for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "pandas", "matplotlib", "scipy", "numpy", "jinja2", "yaml"}


def test_the_report_needs_no_torch() -> None:
    code = "import sys; import reports.report, reports.html, reports.write, reports.terminal\n"
    code += "print(sorted({'torch', 'lightning', 'domains', 'attention'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_hostile_name_stays_text_in_the_summary(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>*b* `c` [d](e) _f_\n# g"
    for attention in ("standard", "quest"):
        write_run(tmp_path / "store", RunSpec(attention=attention, recipe=evil))
    assert cli.main([f"results={tmp_path / 'store'}", f"output={tmp_path / 'out'}"]) == 0
    lines = (tmp_path / "out" / "summary.md").read_text().splitlines()
    (heading,) = [line for line in lines if line.startswith("## timeseries")]
    escaped = r"recipe \<script>alert(1)\</script>\*b\* \`c\` [d]\(e) \_f\_ # g, budget full"
    assert escaped in heading
    assert "model transformer_cls" in heading
    assert "# g" not in {line[:3] for line in lines}
