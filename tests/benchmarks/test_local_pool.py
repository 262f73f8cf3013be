"""The local launcher with real processes: shared work, crashes, limits, signals, full disks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launch.display import PlainDisplay
from benchmarks.launch.local import LaunchError, LocalPool, PlannedRun, Summary
from benchmarks.store import Run, RunKey, Store, StoreWriteError
from tests.benchmarks.fake_executor import expected_value

EXECUTOR = "tests.benchmarks.fake_executor:execute"

PROGRAM = """
import json, sys
from benchmarks.launch.local import LocalPool, PlannedRun
from benchmarks.store import RunKey, Store

root, workers, plan, stale = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
planned = [
    PlannedRun(RunKey("toy", "parity", "quest", "0123456789ab", config["seed"]), config)
    for config in plan
]
store = Store(root, stale_seconds=float(stale))
pool = LocalPool(store, workers, 1, executor="tests.benchmarks.fake_executor:execute")
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

    def run(self, configs: list[dict[str, Any]], workers: int = 1, **options: Any) -> Summary:
        with self.output.open("a") as stream:
            pool = LocalPool(
                self.store, workers, 1, EXECUTOR, display=PlainDisplay(stream), **options
            )
            return pool.run([PlannedRun(key(config["seed"]), config) for config in configs])

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

    def assert_done(self, seed: int, epochs: int) -> None:
        result = self.get(seed).result()
        assert result is not None
        assert result["value"] == expected_value(seed, epochs)
        assert [record["epoch"] for record in self.get(seed).metrics()] == list(range(epochs))
        assert self.get(seed).holder() is None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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


def test_runs_are_done_once(bench: Bench) -> None:
    configs = [bench.config(seed) for seed in range(3)]
    first = bench.run([*configs, configs[0]], workers=2)
    assert first.counts == {"done": 3}
    assert first.executed == 3
    for seed in range(3):
        bench.assert_done(seed, 2)
    start = time.monotonic()
    again = bench.run(configs, workers=2)
    assert time.monotonic() - start < 0.5, "workers were started for nothing"
    assert (again.counts, again.executed) == ({"done": 3}, 0)
    assert sorted(bench.executed()) == sorted(
        f"{what} {seed} ok" for what in ("begin", "end") for seed in range(3)
    )


def test_a_worker_is_used_again_and_told_its_threads(bench: Bench) -> None:
    bench.run([bench.config(seed, "threads") for seed in range(3)])
    logs = [(bench.get(seed).path / "log.txt").read_text() for seed in range(3)]
    lines = {line for log in logs for line in log.splitlines() if "thread, process" in line}
    assert len(lines) == 1
    line = lines.pop()
    assert line.startswith("1 thread, process ")
    assert line.endswith(f", of {sys.argv[0]}"), "provenance would tell another command"


def test_final_states_are_repeated_only_when_asked(bench: Bench) -> None:
    configs = [bench.config(0, "diverge")]
    assert bench.run(configs).counts == {"diverged": 1}
    assert bench.run(configs).executed == 0
    again = bench.run(configs, retry=("diverged",))
    assert (again.counts, again.executed) == ({"diverged": 1}, 1)
    assert len(bench.get(0).metrics()) == 1
    assert (bench.get(0).path / "metrics.jsonl.replaced-1").exists()
    assert bench.executed() == ["begin 0 diverge"] * 2


# Failures


def test_every_end_is_a_state_and_the_others_go_on(bench: Bench) -> None:
    ends = {
        "fail": "failed",
        "oom": "oom",
        "torch_oom": "oom",
        "diverge": "diverged",
        "exit": "failed",
        "no_result": "failed",
        "segfault": "failed",
        "die_always": "failed",
        "die_once": "done",
        "ok": "done",
    }
    configs = [bench.config(seed, mode) for seed, mode in enumerate(ends)]
    summary = bench.run(configs, workers=2)
    modes = {mode: bench.get(seed) for seed, mode in enumerate(ends)}
    assert {mode: run.status()["state"] for mode, run in modes.items()} == ends
    assert summary.counts == dict(Counter(ends.values()))
    reasons = {mode: summary.reasons.get(run.key, "") for mode, run in modes.items()}
    assert reasons["fail"] == "KeyError: 'no such thing'"
    assert reasons["oom"] == "MemoryError: for 10 GB"
    assert reasons["diverge"] == "loss is nan"
    assert modes["diverge"].status()["details"]["step"] == 11
    assert "signal 9: often out of memory" in reasons["die_always"]
    assert "signal 11" in reasons["segfault"]
    assert "without having written a result" in reasons["no_result"]
    assert "KeyError" in modes["fail"].status()["details"]["traceback"]
    assert "raise KeyError" in (modes["fail"].path / "log.txt").read_text()
    assert (
        "Fatal Python error: Segmentation fault" in (modes["segfault"].path / "log.txt").read_text()
    )
    counts = Counter(bench.executed())
    for seed, mode in enumerate(ends):
        tries = {"segfault": 3, "die_always": 3, "die_once": 2}.get(mode, 1)
        assert counts[f"begin {seed} {mode}"] == tries, mode
    assert modes["die_always"].status()["attempts"] == 3
    for seed in (list(ends).index("die_once"), list(ends).index("ok")):
        bench.assert_done(seed, 2)


def test_what_failed_is_tried_again_by_the_next_call(bench: Bench) -> None:
    assert bench.run([bench.config(0, "fail")]).counts == {"failed": 1}
    assert bench.run([bench.config(0, "ok")]).counts == {"done": 1}
    assert bench.get(0).status()["attempts"] == 2


def test_output_of_each_attempt_is_kept(bench: Bench) -> None:
    bench.run([bench.config(0, "fail")])
    bench.run([bench.config(0, "prints"), bench.config(1, "ok")])
    log = (bench.get(0).path / "log.txt").read_text()
    heads = [line for line in log.splitlines() if " attempt " in line]
    assert [head.partition(" attempt ")[2][:2] for head in heads] == ["1,", "2,"]
    for text in ("from python", "to stderr", "from native code", "from a child", "=== done"):
        assert text in log
    assert "from python" not in (bench.get(1).path / "log.txt").read_text()


def test_time_limit(bench: Bench) -> None:
    configs = [bench.config(0, "ok", seconds=3.0), bench.config(1, "stubborn"), bench.config(2)]
    start = time.monotonic()
    summary = bench.run(configs, workers=2, time_limit=1.0, grace=1.5)
    assert time.monotonic() - start < 15
    assert summary.counts == {"timeout": 2, "done": 1}
    assert "in epoch 0" in summary.reasons[key(0)]
    assert "was killed" in summary.reasons[key(1)]
    assert bench.run([bench.config(0, epochs=1)]).counts == {"done": 1}


def test_executor_that_cannot_be_imported(bench: Bench) -> None:
    for name in ("no_such_module:execute", "tests.benchmarks.fake_executor:no_such_function"):
        pool = LocalPool(bench.store, 1, 1, name, display=PlainDisplay(sys.stdout))
        with pytest.raises(LaunchError, match=r"cannot be used(.|\n)*no_such"):
            pool.run([PlannedRun(key(0), bench.config(0))])


def test_workers_that_die_while_they_start(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os\nprint('no driver')\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    pool = LocalPool(bench.store, 2, 1, "deadly:execute", display=PlainDisplay(sys.stdout))
    with pytest.raises(LaunchError, match=r"signal 6(.|\n)*no driver"):
        pool.run([PlannedRun(key(seed), bench.config(seed)) for seed in range(2)])


# Two runners, dead runners


def test_two_runners_share_the_work(bench: Bench) -> None:
    configs = [bench.config(seed, epochs=2, seconds=0.02) for seed in range(12)]
    configs.append(bench.config(12, "fail"))
    runners = [bench.program(configs, workers=2), bench.program(configs, workers=2)]
    results = [said(runner)[1] for runner in runners]
    assert all(result["counts"] == {"done": 12, "failed": 1} for result in results)
    assert sum(result["executed"] for result in results) == 13
    assert sorted(bench.executed()) == sorted(
        [f"{what} {seed} ok" for what in ("begin", "end") for seed in range(12)] + ["begin 12 fail"]
    )
    for seed in range(12):
        bench.assert_done(seed, 2)
    assert all(result["executed"] > 0 for result in results), "one did all: nothing was shared"


def test_a_runner_waits_for_what_another_is_doing(bench: Bench) -> None:
    configs = [bench.config(0, epochs=2, seconds=0.8)]
    other = bench.program(configs)
    until(lambda: bench.state(0) == "running")
    summary = bench.run(configs)
    assert (summary.counts, summary.executed) == ({"done": 1}, 0)
    assert "by another runner" in bench.output.read_text()
    assert said(other)[1]["executed"] == 1
    assert bench.executed() == ["begin 0 ok", "end 0 ok"]


def test_a_failure_elsewhere_that_was_under_way_counts(bench: Bench) -> None:
    configs = [bench.config(0, "fail", seconds=1.0)]
    other = bench.program(configs)
    until(lambda: bench.state(0) == "running")
    assert bench.run(configs).executed == 0
    assert said(other)[1]["counts"] == {"failed": 1}
    assert bench.executed() == ["begin 0 fail"]


def test_a_killed_runner_is_taken_over_at_once_with_the_same_numbers(bench: Bench) -> None:
    configs = [bench.config(seed, epochs=4, seconds=0.3) for seed in range(3)]
    runner = bench.program(configs, workers=2)
    until(lambda: len(bench.get(0).metrics()) >= 2)
    runner.kill()
    runner.communicate()
    start = time.monotonic()
    summary = bench.run(configs, workers=2)
    assert time.monotonic() - start < 10
    assert summary.counts == {"done": 3}
    for seed in range(3):
        bench.assert_done(seed, 4)
    assert bench.get(0).status()["attempts"] == 2, "it was not resumed but found done"


def test_workers_of_a_killed_runner_end_by_themselves(bench: Bench) -> None:
    runner = bench.program([bench.config(0, epochs=100, seconds=0.3)])
    until(lambda: bench.state(0) == "running")
    pid = bench.get(0).status()["details"]["pid"]
    runner.kill()
    runner.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists(), 5)
    assert bench.state(0) == "interrupted"
    assert bench.get(0).holder() is None


def test_everything_killed_at_once_resumes(bench: Bench) -> None:
    configs = [bench.config(0, epochs=4, seconds=0.3)]
    runner = bench.program(configs)
    until(lambda: len(bench.get(0).metrics()) >= 2)
    pid = bench.get(0).status()["details"]["pid"]
    runner.send_signal(signal.SIGSTOP)  # so that neither can tidy up after the other
    os.kill(pid, signal.SIGKILL)
    runner.kill()
    runner.communicate()
    assert bench.state(0) == "running"
    assert bench.run(configs).counts == {"done": 1}
    bench.assert_done(0, 4)


def test_killed_again_and_again_it_reaches_the_same_numbers(bench: Bench) -> None:
    chance = random.Random(0)
    config = bench.config(0, epochs=12, seconds=0.03)
    end = threading.Event()

    def kill() -> None:
        while not end.wait(chance.uniform(0.1, 0.35)):
            holder = bench.get(0).holder()
            if holder is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(holder.name.split("-")[2]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        summary = bench.run([config], max_attempts=1000)
    finally:
        end.set()
        killer.join()
    assert summary.counts == {"done": 1}
    bench.assert_done(0, 12)
    assert bench.get(0).status()["attempts"] > 2


def test_a_suspended_worker_loses_its_run_and_gives_in(bench: Bench) -> None:
    bench.store = Store(bench.store.root, stale_seconds=1.0)
    config = bench.config(0, epochs=3, seconds=0.4)
    runner = bench.program([config])
    until(lambda: len(bench.get(0).metrics()) >= 1)
    pid = bench.get(0).status()["details"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert bench.run([config]).executed == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert said(runner)[1] == {"counts": {"done": 1}, "executed": 0, "interrupted": False}
    bench.assert_done(0, 3)
    assert bench.executed() == ["begin 0 ok", "begin 0 ok", "end 0 ok"]


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(bench: Bench, number: signal.Signals) -> None:
    configs = [bench.config(seed, epochs=4, seconds=0.3) for seed in range(3)]
    runner = bench.program(configs, workers=2)
    until(lambda: bench.state(0) == bench.state(1) == "running")
    runner.send_signal(number)
    output, summary = said(runner)
    assert runner.returncode == 0
    assert summary["interrupted"]
    assert summary["counts"] == {"interrupted": 2, "planned": 1}
    assert "Give the same command again to continue" in output
    assert "\x1b" not in output
    assert bench.run(configs, workers=2).counts == {"done": 3}
    for seed in range(3):
        bench.assert_done(seed, 4)


def test_asked_twice_it_kills(bench: Bench) -> None:
    runner = bench.program([bench.config(0, "stubborn"), bench.config(1)])
    until(lambda: bench.executed() == ["begin 0 stubborn"])
    runner.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert runner.poll() is None
    runner.send_signal(signal.SIGINT)
    assert said(runner)[1]["counts"] == {"interrupted": 1, "planned": 1}
    assert bench.state(0) == "interrupted"
    assert bench.get(0).holder() is None


def test_a_single_worker_told_to_stop_is_replaced(bench: Bench) -> None:
    runner = bench.program([bench.config(0, epochs=4, seconds=0.3)])
    until(lambda: len(bench.get(0).metrics()) >= 1)
    os.kill(bench.get(0).status()["details"]["pid"], signal.SIGTERM)
    assert said(runner)[1]["counts"] == {"done": 1}
    assert bench.get(0).status()["attempts"] == 2
    bench.assert_done(0, 4)


# Full disk


def test_full_disk_stops_with_a_message_and_can_be_continued(
    small_disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = Bench(tmp_path_factory.mktemp("elsewhere"))
    bench.store = Store(small_disk / "results")
    configs = [bench.config(seed, epochs=6, seconds=0.3) for seed in range(2)]
    filler = small_disk / "filler"

    def fill() -> None:
        until(lambda: len(bench.get(0).metrics()) >= 2)
        with filler.open("wb", 0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass

    thread = threading.Thread(target=fill)
    thread.start()
    with pytest.raises(StoreWriteError, match=r"No space left.*RESULTS_DIR"):
        bench.run(configs)
    thread.join()
    assert bench.state(0) in ("running", "interrupted")
    filler.unlink()
    assert bench.run(configs).counts == {"done": 2}
    for seed in range(2):
        bench.assert_done(seed, 6)


def test_unwritable_store(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench.store = Store(tmp_path / "file")
    with pytest.raises(StoreWriteError, match="cannot write"):
        bench.run([bench.config(0)])
