"""Commands over large stores: planning what is finished, reporting on thousands of runs."""

from __future__ import annotations

import atexit
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.config import RunConfig, default_domain
from benchmarks.plan import expand, parse
from benchmarks.store import RunKey, Store
from domains.speed_cases import ActionFailedError, TimeLimit

ROOT = Path(__file__).resolve().parents[2]
GROUP = "commands"
EPOCHS = 20


def cases(*, quick: bool) -> Iterator[TimeLimit]:
    """Planning again what is done, and reporting."""
    compared = ["standard"] if quick else ["standard", "qnorm", "qknorm_hs", "quest"]
    request = [f"domain={default_domain()}", f"attention={','.join(compared)}", "synthetic=true"]
    request.append("seeds=2" if quick else "seeds=5")
    runs = len(expand(parse(request)))
    yield TimeLimit(
        GROUP,
        f"plan of {runs} finished runs, start of the program included",
        lambda: command(finished(request), "plan", *request),
        limit=2.0,
    )
    yield TimeLimit(
        GROUP,
        f"`run` with {runs} finished runs, start and report included",
        lambda: command(finished(request), "run", *request),
        limit=5.0,
    )
    datasets, variants, repeats = (4, 5, 10) if quick else (100, 10, 10)
    yield TimeLimit(
        GROUP,
        f"report over {datasets * variants * repeats:,} runs",
        lambda: command(many_runs(datasets, variants, repeats), "report"),
        limit=20.0,
    )


def command(results: Path, *arguments: str) -> Callable[[], object]:
    """A command of the suite in a process of its own, as a user runs it."""

    def action() -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "run_all.py"), *arguments],
            cwd=ROOT,
            env={**os.environ, "RESULTS_DIR": str(results)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ActionFailedError(f"run_all.py {' '.join(arguments)}: {done.stderr}")

    return action


def finished(request: list[str]) -> Path:
    """A store in which every run of the request is done."""
    root = temporary_folder()
    store = Store(root)
    for planned in expand(parse(request)):
        run = store.prepare(planned.key, planned.config.to_dict())
        run.write_result(result_of(planned.key, planned.config))
        run.set_status("running")
        run.set_status("done")
    return root


def many_runs(datasets: int, variants: int, repeats: int) -> Path:
    """A store of made-up finished runs: so many data sets × variants × seeds.

    The files of one run come from the store itself; the others are copies with other keys, which
    is quicker than writing each through to the disk.
    """
    root = temporary_folder()
    names = ("standard", *(f"variant{number}" for number in range(1, variants)))
    keys = [
        RunKey(default_domain(), f"dataset{d:03}", name, f"{d * variants + v:012x}", seed)
        for d in range(datasets)
        for v, name in enumerate(names)
        for seed in range(repeats)
    ]
    (planned,) = expand(
        parse([f"domain={default_domain()}", "dataset=default", "attention=standard", "seed=0"])
    )
    config = planned.config.to_dict()
    first = Store(root).prepare(keys[0], adapted(config, keys[0]))
    for epoch in range(EPOCHS):
        values = {"train/loss": 1.0 / (epoch + 1), "val/accuracy": 50.0 + epoch, "lr": 0.001}
        first.append_metrics(
            {"phase": "main", "epoch": epoch, "step": 10 * epoch, "values": values}
        )
    first.write_result(result_of(keys[0], planned.config))
    first.set_status("running")
    first.set_status("done")
    unchanged = {
        path.name: path.read_bytes()
        for path in first.path.iterdir()
        if path.is_file() and path.name not in ("config.yaml", "result.json")
    }
    for key in keys[1:]:
        folder = key.path(root)
        folder.mkdir(parents=True)
        for name, content in unchanged.items():
            (folder / name).write_bytes(content)
        # JSON is YAML.
        (folder / "config.yaml").write_text(json.dumps(adapted(config, key)))
        (folder / "result.json").write_text(json.dumps(result_of(key, planned.config)))
    return root


def adapted(config: dict[str, Any], key: RunKey) -> dict[str, Any]:
    """The configuration with the names of another run."""
    return {
        **config,
        "dataset": {**config["dataset"], "name": key.dataset},
        "attention": {**config["attention"], "name": key.attention},
        "seed": key.seed,
    }


def result_of(key: RunKey, config: RunConfig) -> dict[str, Any]:
    """A plausible result, the same in every call."""
    noise = random.Random(f"{key}")
    accuracy = 80.0 + noise.gauss(0.0, 1.0)
    metrics = {"test/accuracy": accuracy, "test/accuracy_best": accuracy + 0.5, "test/loss": 0.6}
    telemetry = ("max_logit", "query_norm_mean", "query_norm_max", "key_norm_mean", "entropy")
    return {
        "schema": 1,
        "domain": key.domain,
        "dataset": key.dataset,
        "model": config.model.name,
        "protocol": config.protocol,
        "protocol_version": 1,
        "attention": key.attention,
        "attention_options": {},
        "recipe": config.recipe.name,
        "budget": config.budget.name,
        "seed": key.seed,
        "hash": key.hash,
        "primary_metric": {"name": "test/accuracy", "higher_is_better": True, "unit": "%"},
        "metrics": metrics,
        "metric_info": {
            name: {"higher_is_better": name != "test/loss", "unit": "", "note": None}
            for name in metrics
        },
        "selected": {"phase": "main", "epoch": 12, "step": 120, "rule": "val/accuracy max"},
        "parameters": {"total": 400_000, "attention": 200_000, "trainable": 400_000, "parts": {}},
        "cost": {
            "seconds": 10.0,
            "seconds_per_step": 0.01 + noise.random() / 1000,
            "steps": 10 * EPOCHS,
            "epochs": EPOCHS,
            "peak_memory_bytes": 400_000_000,
            "device": "cpu",
            "threads": 1,
        },
        "data": {
            "kind": "synthetic",
            "version": "1",
            "fingerprint": f"sha256:{key.dataset}",
            "source": "made up",
            "sizes": {"train": 216, "val": 54, "test": 370},
            "notes": [],
        },
        "telemetry": dict.fromkeys(telemetry, 1.0),
        "notes": [],
    }


def temporary_folder() -> Path:
    """A folder that goes when the program ends."""
    folder = tempfile.mkdtemp(prefix="speed-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning's notes on devices, one a fit, out of the table."""
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
