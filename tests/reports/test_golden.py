"""Committed reports are remade from their own CSV files, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.export import read_csv
from reports.frame import load
from reports.report import Report, build, text_files
from tests.reports.build_store import sample_store

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = Path(__file__).resolve().parents[2] / "reports" / "examples"
FOLDERS = {
    path.parent for name in ("runs.csv", "grid_runs.csv") for path in EXAMPLES.glob(f"*/{name}")
}
REPORTS = [GOLDEN, *sorted(FOLDERS)]


def remade(folder: Path) -> dict[str, str]:
    report: Report = build(read_csv(folder), "python run_all.py report", draw=False)
    return text_files(report)


@pytest.mark.parametrize("folder", REPORTS, ids=lambda folder: folder.name)
def test_text_files_are_remade_byte_for_byte(folder: Path) -> None:
    made = remade(folder)
    committed = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".md", ".tex", ".csv") and path.name != "README.md"
    }
    assert committed
    assert set(committed) <= set(made)
    for name, content in committed.items():
        assert made[name].encode() == content, f"{folder.name}/{name}"


def test_the_golden_report_is_that_of_the_sample_store(tmp_path: Path) -> None:
    """After an intended change: `python -m tests.reports.test_golden` writes the files anew."""
    made = text_files(build(load(sample_store(tmp_path)), "python run_all.py report", draw=False))
    committed = {str(p.relative_to(GOLDEN)) for p in GOLDEN.rglob("*") if p.is_file()}
    assert committed == set(made)
    for name, content in made.items():
        assert (GOLDEN / name).read_bytes() == content.encode(), name


def _write(store: Path) -> None:
    for name, content in text_files(build(load(sample_store(store)), "", draw=False)).items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    import tempfile

    _write(Path(tempfile.mkdtemp()))
