"""Writes stores in the layout of `benchmarks/store.py` from plain JSON, for tests of the report."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TIME = "2026-03-01T12:00:00+00:00"
BASE = {"JapaneseVowels": 97.2, "BasicMotions": 96.0, "Handwriting": 38.0, "Heartbeat": 76.0}
GAIN = {"standard": 0.0, "quest": 0.6, "qnorm": -0.4, "qknorm_hs": 0.2, "qknorm_ds": -2.5}
SIZES = {"JapaneseVowels": 370, "BasicMotions": 40, "Handwriting": 850, "Heartbeat": 205}
SELECTED_ON_TEST = "selected on the test split"


@dataclass
class RunSpec:
    """One run to write; `values` replaces the made-up metrics."""

    dataset: str = "JapaneseVowels"
    attention: str = "standard"
    seed: int = 0
    domain: str = "timeseries"
    protocol: str = "holdout"
    protocol_version: int = 1
    recipe: str = "tslib"
    budget: str = "full"
    kind: str = "real"
    model: str = "transformer_cls"
    state: str = "done"
    reason: str | None = None
    epochs: int = 12
    options: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    metrics_log: bool = True

    @property
    def hash(self) -> str:
        identity = (
            self.domain, self.dataset, self.attention, self.protocol, self.protocol_version,
            self.recipe, self.budget, self.kind, self.model, self.options, self.overrides,
            self.fingerprint,
        )  # fmt: skip
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]

    def path(self, root: Path) -> Path:
        return root / self.domain / self.dataset / self.attention / self.hash / f"seed={self.seed}"


def accuracy(spec: RunSpec) -> float:
    """A made-up accuracy in percent: seeds are paired, variants differ a little."""
    size = SIZES.get(spec.dataset, 300)
    seed_noise = np.random.default_rng([spec.seed, len(spec.dataset)]).normal(0, 0.4)
    own = _stream(spec).normal(0, 0.3)
    value = BASE.get(spec.dataset, 70.0) + GAIN.get(spec.attention, 0.0) + seed_noise + own
    if spec.protocol == "tslib":
        value += 0.7
    return round(min(value, 100.0) / 100 * size) / size * 100


def write_run(root: Path, spec: RunSpec) -> Path:
    """Write one run directory and return it."""
    path = spec.path(root)
    path.mkdir(parents=True)
    config = {
        "domain": spec.domain,
        "dataset": {"name": spec.dataset, "version": "1"},
        "model": {"width": 128},
        "protocol": spec.protocol,
        "recipe": {"name": spec.recipe, "optimizer": {"lr": 0.001}},
        "budget": {"name": spec.budget},
        "attention": {"name": spec.attention, "options": spec.options},
        "trainer": {"precision": "32-true", "devices": 1},
        "synthetic": spec.kind == "synthetic",
        **spec.overrides,
        "seed": spec.seed,
    }
    (path / "config.yaml").write_text(json.dumps(config, indent=1))  # JSON is YAML
    provenance = {
        "schema": 1,
        "time": TIME,
        "command": f"python run_all.py run domain={spec.domain} dataset={spec.dataset}",
        "source": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": None},
        "python": "3.11.9",
        "packages": {"lightning": "2.6.6", "numpy": "2.4.6", "torch": "2.13.0", "zipp": "3.0"},
        "machine": {"cpu": "Some CPU", "cores": 2},
        "device": "cpu",
        "threads": 1,
    }
    _json(path / "provenance.json", provenance)
    status = {
        "schema": 1, "state": spec.state, "reason": spec.reason, "time": TIME,
        "attempts": 1, "details": {},
    }  # fmt: skip
    _json(path / "status.json", status)
    if spec.metrics_log and spec.state in ("done", "diverged"):
        _curves(path / "metrics.jsonl", spec)
    if spec.state == "done":
        _json(path / "result.json", _result(spec))
    return path


def _result(spec: RunSpec) -> dict[str, Any]:
    value = accuracy(spec)
    if spec.protocol == "tslib":
        honest, best = value - 0.8, value
        metrics = {"test/accuracy": best, "test/accuracy_last": honest}
    else:
        honest, best = value, min(100.0, value + 0.6)
        metrics = {"test/accuracy": honest, "test/accuracy_best": best}
    metrics["test/selection_gap"] = best - honest
    metrics["test/nll"] = 2.0 - value / 60
    metrics |= spec.values
    note = SELECTED_ON_TEST if spec.protocol == "tslib" else None
    info = {
        "test/accuracy": {"higher_is_better": True, "unit": "%", "note": note},
        "test/accuracy_best": {"higher_is_better": True, "unit": "%", "note": SELECTED_ON_TEST},
        "test/accuracy_last": {"higher_is_better": True, "unit": "%", "note": None},
        "test/selection_gap": {"higher_is_better": False, "unit": "points", "note": None},
        "test/nll": {"higher_is_better": False, "unit": "nats", "note": note},
    }
    slow = 1.0 + 0.03 * (list(GAIN).index(spec.attention) if spec.attention in GAIN else 1)
    if spec.attention == "qknorm_ds":
        slow = 1.16
    result = {
        "schema": 1,
        "domain": spec.domain,
        "dataset": spec.dataset,
        "model": spec.model,
        "protocol": spec.protocol,
        "protocol_version": spec.protocol_version,
        "attention": spec.attention,
        "attention_options": spec.options,
        "recipe": spec.recipe,
        "budget": spec.budget,
        "seed": spec.seed,
        "hash": spec.hash,
        "primary_metric": {"name": "test/accuracy", "higher_is_better": True, "unit": "%"},
        "metrics": metrics,
        "metric_info": {name: info[name] for name in metrics if name in info},
        "selected": {
            "phase": "main",
            "epoch": spec.epochs - 3,
            "step": 14 * (spec.epochs - 2),
            "rule": "val/accuracy max, patience 10, ties: later",
        },
        "parameters": {
            "total": 404_105 + (384 if spec.attention == "qknorm_ds" else 0),
            "attention": 198_144,
            "trainable": 404_105,
            "parts": {},
        },
        "cost": {
            "seconds": 17.3 * slow,
            "seconds_per_step": 0.011 * slow * (1 + 0.01 * spec.seed),
            "steps": 14 * spec.epochs,
            "epochs": spec.epochs,
            "peak_memory_bytes": int(412e6 * (slow if spec.attention != "quest" else 1.0)),
            "device": "cpu",
            "threads": 1,
        },
        "data": {
            "kind": spec.kind,
            "version": "1",
            "fingerprint": spec.fingerprint or "sha256:" + _digest(spec.dataset + spec.kind),
            "source": "made up",
            "sizes": {"train": 216, "val": 54, "test": SIZES.get(spec.dataset, 300)},
        },
        "telemetry": _telemetry(spec, 1.0),
        "notes": [],
    }
    return result | spec.result


def _telemetry(spec: RunSpec, progress: float) -> dict[str, float]:
    bounded = spec.attention in ("quest", "qknorm_hs", "qknorm_ds")
    top = 4 + 2 * progress if bounded else 6 * math.exp(1.4 * progress)
    jitter = 1 + 0.05 * float(_stream(spec).normal())
    return {
        "max_logit": top * jitter,
        "query_norm_mean": (2 + 2 * progress) * jitter,
        "query_norm_max": (3 + 4 * progress) * jitter,
        "key_norm_mean": (2 + 3 * progress) * jitter,
        "key_norm_max": (3 + 6 * progress) * jitter,
        "entropy": (3.1 - 1.1 * progress) * jitter,
    }


def _curves(path: Path, spec: RunSpec) -> None:
    final, noise = accuracy(spec), _stream(spec)
    with path.open("w") as file:
        for epoch in range(spec.epochs):
            progress = (epoch + 1) / spec.epochs
            value = final - 60 * math.exp(-6 * progress) + float(noise.normal(0, 0.5))
            values = {
                "train/loss": 2.1 * math.exp(-3 * progress) + 0.02,
                "val/accuracy": min(100.0, value),
                "test/accuracy": min(100.0, value - 0.5),
                "lr": 0.001,
            }
            head = {"phase": "main", "epoch": epoch, "step": 14 * (epoch + 1)}
            file.write(json.dumps(head | {"values": values}) + "\n")
            layers = {
                f"encoder.layers.{layer}.attention.core": {
                    name: [reading * (1 + 0.1 * layer), reading]
                    for name, reading in _telemetry(spec, progress).items()
                }
                for layer in range(2)
            }
            file.write(json.dumps(head | {"telemetry": layers}) + "\n")


def sample_store(root: Path) -> Path:
    """A store with everything a report must cope with, except damage."""
    for dataset in ("JapaneseVowels", "BasicMotions", "Handwriting"):
        for attention in GAIN:
            for seed in range(3):
                spec = RunSpec(dataset, attention, seed)
                if (dataset, attention) == ("Handwriting", "qknorm_ds"):
                    spec.state, spec.reason = "oom", "out of memory while training"
                if (dataset, attention, seed) == ("BasicMotions", "qnorm", 1):
                    spec.state, spec.reason = "diverged", "loss is nan at step 70"
                if (dataset, attention, seed) == ("BasicMotions", "qknorm_hs", 2):
                    continue
                write_run(root, spec)
    for dataset in ("JapaneseVowels", "Handwriting"):
        for attention in ("standard", "quest"):
            for seed in range(6):
                write_run(root, RunSpec(dataset, attention, seed, protocol="tslib"))
    return root


def grid(
    root: Path, datasets: Sequence[str], attentions: Sequence[str], seeds: int, **fixed: Any
) -> Path:
    """A complete store of datasets x attentions x seeds."""
    for dataset in datasets:
        for attention in attentions:
            for seed in range(seeds):
                write_run(root, RunSpec(dataset, attention, seed, **fixed))
    return root


def _stream(spec: RunSpec) -> np.random.Generator:
    name = f"{spec.dataset}/{spec.attention}/{spec.protocol}/{spec.seed}"
    return np.random.default_rng(int(_digest(name)[:12], 16))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))
