"""A store, and local pools over it in processes of their own, for the tests of the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.launch.display import PlainDisplay
from benchmarks.launch.local import LocalPool, PlannedRun, Summary
from benchmarks.store import Run, RunKey, Store
from tests.benchmarks.fake_executor import expected_value

EXECUTOR = "tests.benchmarks.fake_executor:execute"
GROUP_EXECUTOR = "tests.benchmarks.fake_executor:execute_together"

PROGRAM = """
import json, sys
from benchmarks.launch.local import LocalPool, PlannedRun
from benchmarks.store import RunKey, Store

root, workers, plan, stale = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
planned = [
    PlannedRun(
        RunKey("toy", "parity", "quest", "0123456789ab", config["seed"]),
        config,
        group=config.get("group"),
    )
    for config in plan
]
store = Store(root, stale_seconds=float(stale))
pool = LocalPool(
    store,
    workers,
    1,
    executor="tests.benchmarks.fake_executor:execute",
    group_executor="tests.benchmarks.fake_executor:execute_together",
)
summary = pool.run(planned)
print(json.dumps({"counts": summary.counts, "executed": summary.executed,
                  "interrupted": summary.interrupted}))
"""


def key(seed: int) -> RunKey:
    return RunKey("toy", "parity", "quest", "0123456789ab", seed)


class Bench:
    """A store in a temporary folder and what was executed over it."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "results")
        self.side = folder / "side.txt"
        self.output = folder / "output.txt"

    def config(self, seed: int, mode: str = "ok", **more: Any) -> dict[str, Any]:
        return {"seed": seed, "mode": mode, "side": str(self.side), **more}

    def group(self, seeds: Iterable[int], name: str = "1", **more: Any) -> list[dict[str, Any]]:
        return [self.config(seed, group=name, **more) for seed in seeds]

    def run(self, configs: list[dict[str, Any]], workers: int = 1, **options: Any) -> Summary:
        with self.output.open("a") as stream:
            pool = LocalPool(
                self.store,
                workers,
                1,
                EXECUTOR,
                GROUP_EXECUTOR,
                display=PlainDisplay(stream),
                **options,
            )
            return pool.run(
                [
                    PlannedRun(
                        key(config["seed"]),
                        config,
                        group=config.get("group"),
                        devices=config.get("devices", 1),
                    )
                    for config in configs
                ]
            )

    def program(
        self,
        configs: list[dict[str, Any]],
        workers: int = 1,
        stdout: int = subprocess.PIPE,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """The pool in a program of its own, which can be killed."""
        arguments = [str(workers), json.dumps(configs), str(self.store.stale_seconds)]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.store.root, *arguments],
            stdout=stdout,
            text=True,
            env={**os.environ, **environment},
        )

    def executed(self) -> list[str]:
        return self.side.read_text().splitlines() if self.side.exists() else []

    def get(self, seed: int) -> Run:
        return self.store.run(key(seed))

    def state(self, seed: int) -> str:
        return str(self.get(seed).status()["state"])

    def assert_done(self, seed: int, epochs: int, *, killed_at_any_time: bool = False) -> None:
        result = self.get(seed).result()
        assert result is not None
        assert result["value"] == expected_value(seed, epochs)
        assert [record["epoch"] for record in self.get(seed).metrics()] == list(range(epochs))
        holder = self.get(seed).holder()
        # Killed after the result was written and before it let go of the run.
        assert holder is None or (killed_at_any_time and self.get(seed).is_dead(holder))


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def said(program: subprocess.Popen[str]) -> tuple[str, Mapping[str, Any]]:
    output, _ = program.communicate(timeout=60)
    *lines, last = output.splitlines()
    return "\n".join(lines), json.loads(last)


# Once
