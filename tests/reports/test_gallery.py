"""Example pictures of runs in the report."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reports import cli
from tests.reports.build_store import RunSpec, write_run


def add_examples(folder: Path, brightness: int, names: tuple[str, ...] = ("street 1",)) -> None:
    """Pictures of one colour, as the engine stores them."""
    (folder / "examples").mkdir()
    records = []
    for number, name in enumerate(names):
        files = {}
        for label, value in (("input", 10), ("truth", 20), ("prediction", brightness)):
            files[label] = f"examples/{number}_{label}.png"
            picture = np.full((4, 6, 3), value, np.uint8)
            Image.fromarray(picture).save(folder / files[label])
        given = {label: files[label] for label in ("input", "truth")}
        records.append({"name": name, "given": given, "prediction": files["prediction"]})
    text = json.dumps({"schema": 1, "examples": records})
    (folder / "examples.json").write_text(text)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two variants of two seeds; only seed 1 of QUEST is done."""
    root = tmp_path / "store"
    for attention, brightness in (("standard", 100), ("quest", 200)):
        for seed in (0, 1):
            state = "failed" if (attention, seed) == ("quest", 0) else "done"
            folder = write_run(root, RunSpec(attention=attention, seed=seed, state=state))
            if state == "done":
                add_examples(folder, brightness + seed)
    return root


def make(store: Path) -> tuple[str, Path]:
    out = store.parent / "report"
    assert cli.main([f"results={store}", f"output={out}"]) == 0
    return (out / "report.html").read_text(), out


def test_inputs_stand_once_beside_the_first_finished_run_of_each_variant(store: Path) -> None:
    page, out = make(store)
    found = {
        path.name: np.asarray(Image.open(path))[0, 0, 0] for path in out.glob("figures/*_example*")
    }
    stem = "timeseries-holdout_JapaneseVowels_example0"
    assert found == {
        f"{stem}_input.png": 10,
        f"{stem}_truth.png": 20,
        f"{stem}_standard.png": 100,
        f"{stem}_quest.png": 201,
    }
    for name in found:
        assert base64.b64encode((out / "figures" / name).read_bytes()).decode() in page
    assert "street 1" in page
    assert "the first finished seed of each" in page
    listed = json.loads((out / "manifest.json").read_text())["files"]
    assert set(listed) >= {f"figures/{name}" for name in found}


def test_damaged_or_missing_pictures_cost_no_report(store: Path) -> None:
    for path in store.rglob("examples.json"):
        if "quest" in path.parts:
            path.write_text("{")
    next(path for path in store.rglob("0_truth.png") if "standard" in path.parts).unlink()
    page, out = make(store)
    names = {path.name.rpartition("_")[2] for path in out.glob("figures/*_example*")}
    assert names == {"input.png", "standard.png"}
    assert "Predictions of seed 0." in page


def test_no_examples_no_section(tmp_path: Path) -> None:
    write_run(tmp_path / "store", RunSpec())
    page, _ = make(tmp_path / "store")
    assert "Examples" not in page
