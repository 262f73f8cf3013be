"""The local launcher under kills, signals and full disks; several launchers on one store."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from benchmarks.store import Store, StoreWriteError
from tests.benchmarks.pool_bench import Bench, said, until


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
    config = bench.config(0, epochs=60, seconds=0.03)
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
    bench.assert_done(0, 60, killed_at_any_time=True)
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
