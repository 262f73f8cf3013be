"""The run store: what readers see, what writers leave behind, and what a crash cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.store import CorruptFileError, Run, RunEnded, RunKey, Store, StoreError

KEY = RunKey("toy", "parity", "quest", "0123456789ab", 0)
CONFIG = {"domain": "toy", "recipe": {"name": "default", "learning_rate": 0.001}}
RESULT = {"domain": "toy", "seed": 0, "metrics": {"test/accuracy": 93.1}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def run(store: Store) -> Run:
    return store.prepare(KEY, CONFIG)


def finish(run: Run, **result: Any) -> None:
    run.set_status("running")
    run.write_result({**RESULT, "seed": run.key.seed, **result})
    run.set_status("done")


def test_layout_is_the_documented_one(run: Run, store: Store) -> None:
    assert run.path == store.root / "toy" / "parity" / "quest" / "0123456789ab" / "seed=0"
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "status.json"]
    assert run.config() == CONFIG
    status = json.loads((run.path / "status.json").read_text())
    assert status.keys() == {"schema", "state", "reason", "time", "attempts", "details"}
    assert (status["schema"], status["state"], status["attempts"]) == (1, "planned", 0)


def test_importing_the_store_is_fast_and_needs_no_torch() -> None:
    code = (
        "import sys, time; start = time.process_time(); import benchmarks.store;"
        "print(time.process_time() - start, 'torch' in sys.modules, 'yaml' in sys.modules)"
    )
    output = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds, *imported = min(o.stdout.split() for o in output)
    assert imported == ["False", "False"]
    assert float(seconds) < 0.1


def test_life_of_a_run(run: Run) -> None:
    run.set_status("running", host="here")
    assert run.status()["attempts"] == 1
    assert run.status()["details"] == {"host": "here"}
    run.set_status("interrupted", "Ctrl-C")
    assert run.status()["reason"] == "Ctrl-C"
    run.set_status("running")
    run.write_result(RESULT)
    assert run.result() is None  # only `done` counts
    run.set_status("done")
    assert run.status()["attempts"] == 2
    assert run.result() == {"schema": 1, **RESULT}


def test_done_needs_a_result(run: Run) -> None:
    run.set_status("running")
    with pytest.raises(StoreError, match=r"no result\.json"):
        run.set_status("done")
    assert run.status()["state"] == "running"


@pytest.mark.parametrize("state", ["done", "diverged", "skipped"])
def test_final_states_stay(run: Run, state: str) -> None:
    run.set_status("running")
    run.write_result(RESULT)
    run.set_status(state)
    with pytest.raises(ValueError, match="final"):
        run.set_status("interrupted")


def test_states_are_checked(run: Run) -> None:
    with pytest.raises(ValueError, match="cannot become 'done'"):
        run.set_status("done")
    with pytest.raises(ValueError, match="cannot become 'finished'"):
        run.set_status("finished")
    with pytest.raises(ValueError, match="cannot be ended as 'done'"):
        RunEnded("done")


def test_a_result_of_another_run_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="seed=7"):
        run.write_result({**RESULT, "seed": 7})


def test_prepare_leaves_a_finished_run_alone(run: Run, store: Store) -> None:
    finish(run)
    before = {p: p.read_bytes() for p in run.path.iterdir()}
    store.prepare(KEY, {"other": 1})
    assert {p: p.read_bytes() for p in run.path.iterdir()} == before


def test_reopened_run_starts_anew_and_nothing_is_deleted(run: Run) -> None:
    run.append_metrics({"phase": "main", "epoch": 0, "step": 1, "values": {}})
    (run.path / "checkpoints").mkdir()
    finish(run)
    assert run.reopen("asked for")
    assert run.status()["state"] == "planned"
    assert run.status()["attempts"] == 1
    assert run.metrics() == []
    for name in ("result.json", "metrics.jsonl", "checkpoints"):
        assert not (run.path / name).exists()
        assert (run.path / f"{name}.replaced-1").exists()
    finish(run)
    assert run.reopen("again")
    assert (run.path / "result.json.replaced-2").exists()


def test_keys_cannot_leave_the_store() -> None:
    for part in ("..", "a/b", ""):
        with pytest.raises(ValueError, match="names a folder"):
            RunKey("toy", part, "quest", "0", 0)


def test_runs_are_found_in_order_and_other_files_are_not(store: Store) -> None:
    keys = [
        RunKey("toy", "b", "quest", "1", 2),
        RunKey("toy", "b", "quest", "1", 10),
        RunKey("graph", "a", "standard", "1", 0),
    ]
    for key in keys:
        store.prepare(key, CONFIG)
    (store.root / "report" / "x" / "y" / "z" / "w").mkdir(parents=True)
    (store.root / "toy" / "notes.txt").write_text("")
    assert [run.key for run in store.runs()] == [keys[2], keys[0], keys[1]]


def test_an_absent_store_is_empty(tmp_path: Path) -> None:
    assert list(Store(tmp_path / "nowhere").runs()) == []
    assert Store(tmp_path).run(KEY).status()["state"] == "planned"
    assert Store(tmp_path).run(KEY).metrics() == []


# Curves


def record(epoch: int, step: int, loss: float) -> dict[str, Any]:
    return {"phase": "main", "epoch": epoch, "step": step, "values": {"train/loss": loss}}


def test_metrics_repeated_after_a_resume_count_once(run: Run) -> None:
    telemetry = {"phase": "main", "epoch": 1, "step": 2, "telemetry": {"layer": {}}}
    for line in (record(0, 1, 0.5), record(1, 2, 0.4), telemetry, record(1, 2, 0.3)):
        run.append_metrics(line)
    run.append_metrics(record(2, 3, 0.2))
    assert run.metrics() == [record(0, 1, 0.5), record(1, 2, 0.3), telemetry, record(2, 3, 0.2)]


@pytest.mark.parametrize("cut", range(1, 12))
def test_metrics_survive_a_line_torn_by_a_kill(run: Run, store: Store, cut: int) -> None:
    run.append_metrics(record(0, 1, 0.5))
    whole = (run.path / "metrics.jsonl").read_bytes()
    run.append_metrics(record(1, 2, 0.4))
    file = run.path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[: len(whole) + cut * 5])
    assert run.metrics() == [record(0, 1, 0.5)]
    resumed = store.run(KEY)
    resumed.append_metrics(record(1, 2, 0.4))
    resumed.append_metrics(record(2, 3, 0.3))
    assert run.metrics() == [record(0, 1, 0.5), record(1, 2, 0.4), record(2, 3, 0.3)]


def test_non_finite_numbers_survive(run: Run) -> None:
    run.append_metrics(record(0, 1, float("inf")))
    assert run.metrics()[0]["values"]["train/loss"] == float("inf")


# Damage


@pytest.mark.parametrize("content", [b"", b'{"state": "do', b"[1]", b"\xff\xfe", b'{"state": 1}'])
def test_damaged_status_is_named_then_set_aside(run: Run, store: Store, content: bytes) -> None:
    finish(run)
    (run.path / "status.json").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"status\.json is damaged"):
        run.status()
    store.prepare(KEY, CONFIG)
    status = run.status()
    assert status["state"] == "planned"
    assert "status.json.corrupt-1" in status["reason"]
    assert (run.path / "status.json.corrupt-1").read_bytes() == content


def test_damaged_result_is_named_then_repeated(run: Run, store: Store) -> None:
    finish(run)
    (run.path / "result.json").write_bytes(b'{"metrics": {')
    with pytest.raises(CorruptFileError, match=r"result\.json is damaged"):
        run.result()
    store.prepare(KEY, CONFIG)
    assert (run.path / "result.json.corrupt-1").exists()
    assert (run.status()["state"], run.status()["attempts"]) == ("planned", 1)
    finish(run)
    assert run.result() is not None


def test_done_without_a_result_is_repeated(run: Run, store: Store) -> None:
    finish(run)
    (run.path / "result.json").unlink()
    with pytest.raises(CorruptFileError, match="missing"):
        run.result()
    store.prepare(KEY, CONFIG)
    assert run.status()["state"] == "planned"


def test_a_store_of_a_newer_version_is_refused(run: Run) -> None:
    (run.path / "status.json").write_text('{"schema": 2, "state": "done"}')
    with pytest.raises(StoreError, match="newer version"):
        run.status()


# Size


def test_two_hundred_finished_runs_are_scanned_at_once(store: Store) -> None:
    for seed in range(200):
        path = RunKey("toy", "parity", "quest", "0123456789ab", seed).path(store.root)
        path.mkdir(parents=True)
        (path / "status.json").write_text(json.dumps({"state": "done", "attempts": 1}))
    seconds = []
    for _ in range(5):
        start = time.process_time()  # what it costs, however busy the machine
        states = [run.status()["state"] for run in store.runs()]
        seconds.append(time.process_time() - start)
    assert states == ["done"] * 200
    assert min(seconds) < 0.05
