"""Writes stores that hold a grid study, with made-up runs that look like those of the toy task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.reports.build_store import TIME

LRS = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01)
DECAYS = (0.0, 0.01, 0.02, 0.05, 0.1)
OUTCOMES = ("correct", "biased", "degenerate", "other")
SUCCESS = {
    "standard": (0, 0, 33, 50, 46, 39),
    "quest": (56, 69, 64, 60, 62, 59),
    "qnorm": (0, 0, 34, 50, 53, 58),
    "qknorm": (0, 0, 0, 0, 0, 0),
    "qknorm_hs": (0, 3, 51, 95, 94, 93),
    "qknorm_ds": (0, 29, 96, 95, 95, 94),
}
"""Made-up success in percent by learning rate."""
BIASED = {"standard": 0.6, "quest": 0.08, "qnorm": 0.45, "qknorm": 0.46}
"""Share of the runs that fail that end biased."""
NORMS = {  # biased, unbiased, other answers at the end, then query norm and attention on the answer
    ("standard", "correct"): (2.0, 2.1, 8.5, 5.0, 0.92, 0.86),
    ("standard", "biased"): (6.8, 5.2, 6.4, 6.0, 0.98, 0.27),
    ("qnorm", "correct"): (2.4, 2.7, 11.2, 3.0, 0.88, 0.83),
    ("qnorm", "biased"): (7.6, 4.6, 5.4, 3.0, 0.97, 0.27),
    ("quest", "correct"): (2.7, 2.4, 3.7, 19.0, 0.94, 0.92),
    ("quest", "other"): (6.3, 5.6, 5.8, 9.0, 0.02, 0.05),
}
PROBES = (
    "key_norm_biased", "key_norm_unbiased", "key_norm_other", "query_norm", "attention_biased",
    "attention_unbiased", "attention_other",
)  # fmt: skip
SPEC = {
    "axes": ["recipe.optimizer.lr", "recipe.optimizer.weight_decay"],
    "replicates": ["dataset.seed"],
    "outcomes": [f"test/{name}" for name in OUTCOMES],
}
NOTES = {
    "correct": "train and test accuracy above 90 %",
    "biased": "train accuracy 50-80 %, test accuracy 20-40 %",
    "degenerate": "test accuracy within 3 points of chance",
    "other": "none of these",
}


@dataclass(frozen=True)
class GridRun:
    """One run of the made-up study."""

    attention: str = "standard"
    lr: float = LRS[2]
    decay: float = DECAYS[2]
    data_seed: int = 0
    seed: int = 0
    ratio: float = 1.0
    protocol: str = "paper"
    state: str = "done"
    epochs: int = 50

    @property
    def hash(self) -> str:
        identity = (
            self.attention, self.lr, self.decay, self.data_seed, self.ratio, self.protocol,
        )  # fmt: skip
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]

    def path(self, root: Path) -> Path:
        return root / "toy" / "toy" / self.attention / self.hash / f"seed={self.seed}"

    def draw(self) -> np.random.Generator:
        return np.random.default_rng(int(self.hash, 16) + self.seed)

    def outcome(self) -> str:
        """Made up: data seeds and initialisations are harder or easier, for all variants alike."""
        lucky = np.random.default_rng([self.data_seed, 7]).normal(0, 0.12)
        lucky += np.random.default_rng([self.seed, 11]).normal(0, 0.12)
        chance = np.interp(self.lr, LRS, SUCCESS[self.attention]) / 100
        if self.attention == "standard" and self.ratio > 1:
            chance = 0.0
        if chance and self.attention == "quest":
            chance -= 0.15 * abs(np.log10(self.ratio))
        draw = self.draw()
        if chance > 0 and draw.random() < chance + lucky:
            return "correct"
        if draw.random() < BIASED.get(self.attention, 0.7):
            return "biased"
        return "degenerate" if draw.random() < 0.1 else "other"


def write_grid_run(root: Path, run: GridRun, *, result: dict[str, Any] | None = None) -> Path:
    """Write one run directory and return it."""
    path = run.path(root)
    path.mkdir(parents=True)
    config = {
        "domain": "toy",
        "dataset": {"name": "toy", "version": "1", "seed": run.data_seed, "train": 2000},
        "model": {"name": "transformer_1layer", "width": 20},
        "protocol": run.protocol,
        "recipe": {
            "name": "50ep",
            "optimizer": {"lr": run.lr, "weight_decay": run.decay},
            "qk_lr_ratio": run.ratio,
        },
        "budget": {"name": "full"},
        "attention": {"name": run.attention, "options": {}},
        "trainer": {"precision": "32-true", "devices": 1},
        "synthetic": False,
        "seed": run.seed,
    }
    _json(path / "config.yaml", config)  # JSON is YAML
    provenance = {
        "schema": 1,
        "time": TIME,
        "command": "python run_all.py run domain=toy",
        "source": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": None},
        "python": "3.11.9",
        "packages": {"lightning": "2.6.6", "numpy": "2.4.6", "torch": "2.13.0"},
        "machine": {"cpu": "Some CPU", "cores": 2},
        "device": "cpu",
        "threads": 1,
    }
    _json(path / "provenance.json", provenance)
    reason = None if run.state == "done" else f"{run.state} in epoch 3"
    status = {
        "schema": 1, "state": run.state, "reason": reason, "time": TIME, "attempts": 1,
        "details": {},
    }  # fmt: skip
    _json(path / "status.json", status)
    if run.state == "done":
        metrics = _curves(path / "metrics.jsonl", run)
        _json(path / "result.json", _result(run, metrics) | (result or {}))
    return path


def _accuracies(run: GridRun) -> tuple[float, float]:
    draw = run.draw()
    train, test = {
        "correct": (draw.normal(98, 1.6), draw.normal(97, 1.9)),
        "biased": (draw.normal(70, 4), draw.normal(30, 3.5)),
        "degenerate": (draw.normal(11, 1), draw.normal(10, 1)),
        "other": (draw.normal(30, 6), draw.normal(12, 1.5)),
    }[run.outcome()]
    if run.outcome() == "correct":
        train, test = max(train, 90.05), max(test, 90.1)
    return min(round(train * 20) / 20, 100.0), min(round(test, 1), 100.0)


def _curves(path: Path, run: GridRun) -> dict[str, float]:
    draw, outcome = run.draw(), run.outcome()
    train, test = _accuracies(run)
    fallback = (4.0, 4.0, 4.0, 4.0, 0.3, 0.2)
    kind = ("quest" if run.attention == "quest" else "standard", outcome)
    ends = NORMS.get((run.attention, outcome)) or NORMS.get(kind) or fallback
    end = np.array([*ends, 0.01]) * np.exp(draw.normal(0, 0.12, 7))
    end[4:] = np.clip(end[4:], 0, 1)
    start = np.array([2.6, 2.6, 2.7, 2.7, 0.05, 0.05, 0.05])
    names = [f"probe/{name}" for name in PROBES]
    progress = 1 - np.exp(-np.arange(1, run.epochs + 1) / run.epochs * 5)
    bump = np.exp(-(((np.arange(run.epochs) - run.epochs / 5) / (run.epochs / 8)) ** 2))
    readings = start + (end - start) * progress[:, None]
    if outcome == "correct" and run.attention != "quest":
        readings[:, 0] += 3 * bump
    lines = []
    for epoch, reading in enumerate(readings):
        values = {
            "train/loss": round(2.3 - 2.2 * progress[epoch] * train / 100, 5),
            "train/accuracy": 10 + (train - 10) * progress[epoch],
            "test/accuracy": 10 + (test - 10) * progress[epoch],
            **dict(zip(names, reading.tolist(), strict=True)),
        }
        if epoch == 0:
            values |= {
                f"initial/{name}": value for name, value in zip(PROBES, start.tolist(), strict=True)
            }
        record = {"phase": "main", "epoch": epoch, "step": 63 * (epoch + 1), "values": values}
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    shares = {f"test/{name}": 100.0 * (name == outcome) for name in OUTCOMES}
    return {**shares, "test/accuracy": test, "train/accuracy": train, "train/loss": 0.1}


def _result(run: GridRun, metrics: dict[str, float]) -> dict[str, Any]:
    return {
        "schema": 1,
        "domain": "toy",
        "dataset": "toy",
        "model": "transformer_1layer",
        "protocol": run.protocol,
        "protocol_version": 1,
        "attention": run.attention,
        "attention_options": {},
        "recipe": "50ep",
        "budget": "full",
        "seed": run.seed,
        "hash": run.hash,
        "primary_metric": {"name": "test/correct", "higher_is_better": True, "unit": "%"},
        "metrics": metrics,
        "metric_info": {
            name: {
                "higher_is_better": name in ("test/correct", "test/accuracy", "train/accuracy"),
                "unit": "" if name == "train/loss" else "%",
                "note": NOTES.get(name.removeprefix("test/")),
            }
            for name in metrics
        },
        "selected": {"phase": "main", "epoch": 49, "step": 3150, "rule": "last epoch"},
        "parameters": {"total": 3930, "attention": 1680, "trainable": 3930, "parts": {}},
        "cost": {
            "seconds": 0.7 if run.attention == "standard" else 1.1,
            "seconds_per_step": 0.0002,
            "steps": 3150,
            "epochs": run.epochs,
            "peak_memory_bytes": 400_000_000,
            "device": "cpu",
            "threads": 1,
            "trained_together": 25,
        },
        "data": {
            "kind": "regenerated",
            "version": "1",
            "fingerprint": f"sha256:{run.data_seed:064d}",
            "source": "generator",
            "sizes": {"train": 2000, "test": 1000, "classes": 10},
        },
        "grid": SPEC,
        "telemetry": {},
        "notes": [],
    }


def study(
    attentions: Iterable[str],
    lrs: Sequence[float] = LRS,
    decays: Sequence[float] = DECAYS,
    data_seeds: int = 5,
    seeds: int = 5,
    **fixed: Any,
) -> list[GridRun]:
    """Every run of a whole grid."""
    return [
        GridRun(attention, lr, decay, data_seed, seed, **fixed)
        for attention, lr, decay, data_seed, seed in product(
            attentions, lrs, decays, range(data_seeds), range(seeds)
        )
    ]


def write_runs(root: Path, runs: Iterable[GridRun]) -> Path:
    """Write every run that is not there yet."""
    for run in runs:
        if not run.path(root).exists():
            write_grid_run(root, run)
    return root


def small_store(root: Path) -> Path:
    """Two variants on a small grid and a family of query-key rates; some runs end otherwise."""
    runs = study(("standard", "quest"), LRS[1:4], DECAYS[1:3], 3, 3, epochs=6)
    runs[3] = GridRun(**{**vars(runs[3]), "state": "diverged"})
    runs[4] = GridRun(**{**vars(runs[4]), "state": "failed"})
    for ratio in (0.1, 10.0):
        runs += study(("standard", "quest"), LRS[1:3], DECAYS[2:3], 3, 3, epochs=6, ratio=ratio)
    return write_runs(root, runs)


def full_store(root: Path) -> Path:
    """3,000 runs of the full grid and the rates of the query-key family beside them."""
    write_runs(root, study(("standard", "quest", "qnorm", "qknorm")))
    for ratio in (0.1, 0.3, 3.0, 10.0):
        write_runs(root, study(("standard", "quest"), LRS[1:3], DECAYS[2:3], ratio=ratio))
    return root


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    import sys

    full_store(Path(sys.argv[1]))
