"""The local launcher with real processes: shared work, failures, limits."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.launch.display import PlainDisplay
from benchmarks.launch.local import LaunchError, LocalPool, PlannedRun
from tests.benchmarks.pool_bench import Bench, key


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
