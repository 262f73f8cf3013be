"""An executor for tests of launchers: behaves, and misbehaves, as its configuration says."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import write_atomic
from benchmarks.store import ClaimLostError, Run, RunEnded


def execute(
    run: Run,
    config: dict[str, Any],
    progress: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], str | None],
) -> None:
    """A "training" whose value is a chain of hashes, so that only a faithful resume reaches it.

    Keys of the configuration: `mode`, `epochs`, `seconds` per epoch, `side` (a file to which each
    execution appends one line when it begins and one when it ends).
    """
    mode = config["mode"]
    note(config, f"begin {run.key.seed} {mode}")
    if mode == "fail":
        time.sleep(config.get("seconds", 0.0))
        raise KeyError("no such thing")
    if mode == "oom":
        raise MemoryError("for 10 GB")
    if mode == "torch_oom":
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    if mode == "exit":
        sys.exit(3)
    if mode == "segfault":
        ctypes.string_at(0)
    if mode == "no_result":
        return
    if mode == "stubborn":
        time.sleep(60)
    if mode == "prints":
        print("from python")
        print("to stderr", file=sys.stderr)
        ctypes.CDLL(None).printf(b"from native code, ")
        os.system("echo from a child")
    if mode == "gpus":
        note(config, f"sees {run.key.seed} {os.environ['CUDA_VISIBLE_DEVICES']}")
    if mode == "threads":
        import torch

        print(f"{torch.get_num_threads()} thread, process {os.getpid()}, of {sys.argv[0]}")

    checkpoint = run.path / "checkpoints" / "last.json"
    state = {"epoch": 0, "value": str(run.key.seed)}
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
    checkpoint.parent.mkdir(exist_ok=True)
    for epoch in range(state["epoch"], config.get("epochs", 2)):
        for _ in range(10):
            reason = should_stop()
            if reason is not None:
                raise RunEnded(reason, f"in epoch {epoch}")
            time.sleep(config.get("seconds", 0.0) / 10)
        died = (run.path / "died").exists()
        if epoch == 1 and (mode == "die_always" or (mode == "die_once" and not died)):
            (run.path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == 1 and mode == "diverge":
            raise RunEnded("diverged", "loss is nan", step=11)
        state["value"] = hashlib.sha256(f"{state['value']} {epoch}".encode()).hexdigest()
        state["epoch"] = epoch + 1
        values = {"train/loss": 1.0 / (epoch + 1)}
        run.append_metrics({"phase": "main", "epoch": epoch, "step": epoch * 10, "values": values})
        write_atomic(checkpoint, json.dumps(state).encode())
        progress(
            {
                "phase": "main",
                "epoch": epoch + 1,
                "max_epochs": config.get("epochs", 2),
                "step": epoch * 10,
                "metric": "train/loss",
                "value": values["train/loss"],
                "seconds_left": None,
                "seconds_per_step": config.get("seconds", 0.0) / 10,
            }
        )
    write_result(run, state["value"])
    note(config, f"end {run.key.seed} {mode}")


def execute_together(
    runs: Sequence[Run],
    configs: Sequence[dict[str, Any]],
    progress: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], str | None],
) -> list[RunEnded | None]:
    """The same "training" for a group, which starts anew when it was interrupted.

    Modes `fail`, `oom` and `stubborn` of one member strike all; `diverge` ends that one alone.
    """
    first = configs[0]
    modes = {config["mode"] for config in configs}
    note(first, f"together {' '.join(str(run.key.seed) for run in runs)}")
    if "fail" in modes:
        raise KeyError("no such thing")
    if "oom" in modes:
        raise MemoryError("for 10 GB")
    if "stubborn" in modes:
        time.sleep(60)
    values = [str(run.key.seed) for run in runs]
    ended: list[RunEnded | None] = [None] * len(runs)
    for epoch in range(first.get("epochs", 2)):
        time.sleep(first.get("seconds", 0.0))
        reason = should_stop()
        if reason is not None:
            raise RunEnded(reason, f"in epoch {epoch}")
        died = runs[0].path / "died"
        if epoch == 1 and ("die_always" in modes or ("die_once" in modes and not died.exists())):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for number, (run, config) in enumerate(zip(runs, configs, strict=True)):
            if epoch == 1 and config["mode"] == "diverge":
                ended[number] = RunEnded("diverged", "loss is nan", step=11)
            if ended[number] is None:
                values[number] = hashlib.sha256(f"{values[number]} {epoch}".encode()).hexdigest()
                try:
                    run.append_metrics(
                        {"phase": "main", "epoch": epoch, "step": epoch * 10, "values": {}}
                    )
                except ClaimLostError as lost:
                    ended[number] = RunEnded("interrupted", str(lost))
        progress({"phase": "main", "epoch": epoch + 1, "max_epochs": first.get("epochs", 2)})
    for run, value, end in zip(runs, values, ended, strict=True):
        if end is None:
            write_result(run, value)
    note(first, f"end of {' '.join(str(run.key.seed) for run in runs)}")
    return ended


def write_result(run: Run, value: str) -> None:
    """A result with what launchers read, and the value reached."""
    run.write_result(
        {
            **{name: getattr(run.key, name) for name in ("domain", "dataset", "attention")},
            "hash": run.key.hash,
            "seed": run.key.seed,
            "value": value,
            "primary_metric": {"name": "test/accuracy", "higher_is_better": True, "unit": "%"},
            "metrics": {"test/accuracy": 90.0 + run.key.seed / 10},
        }
    )


def expected_value(seed: int, epochs: int) -> str:
    """What an uninterrupted run reaches."""
    value = str(seed)
    for epoch in range(epochs):
        value = hashlib.sha256(f"{value} {epoch}".encode()).hexdigest()
    return value


def note(config: dict[str, Any], line: str) -> None:
    """Append a line to the side file; short appends of several processes do not mix."""
    with Path(config["side"]).open("a") as file:
        file.write(line + "\n")
