"""Workers and whole runners are killed while they train; nothing is lost, no bit differs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASKED = (
    "dataset=JapaneseVowels",
    "attention=quest",
    "seeds=2",
    "synthetic=true",
    "budget.max_epochs=12",
    "recipe.batch_size=4",
    "trainer.checkpoint_every_s=0",
)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(results: Path, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "run_all.py", "run", *ASKED, *arguments],
            cwd=ROOT,
            env={**os.environ, "RESULTS_DIR": str(results)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(
        [sys.executable, "run_all.py", "run", *ASKED],
        cwd=ROOT,
        env={**os.environ, "RESULTS_DIR": str(results)},
        check=True,
        capture_output=True,
    )
    return numbers(results)


def numbers(results: Path) -> dict[str, Any]:
    """What equal runs must agree on, by run."""
    found = {}
    for path in sorted(results.glob("**/result.json")):
        result = json.loads(path.read_text())
        status = json.loads(path.with_name("status.json").read_text())
        assert status["state"] == "done"
        found[str(path.parent.relative_to(results))] = (result["metrics"], result["selected"])
    return found


def wait_for_epochs(results: Path, count: int) -> Path:
    """Wait until a run has trained `count` epochs and saved itself; return its folder."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for metrics in results.glob("**/metrics.jsonl"):
            epochs = sum('"values"' in line for line in metrics.read_text().splitlines())
            resume = list(metrics.parent.glob("checkpoints/*.resume.ckpt"))
            if epochs >= count and resume and not (metrics.parent / "result.json").exists():
                return metrics.parent
        time.sleep(0.02)
    raise AssertionError("no run got that far")


def worker_of(run: Path) -> int:
    """Process number of the worker, from the name of the claim's file."""
    (claim,) = (run / "claim").iterdir()
    return int(claim.stem.split("-")[2])


def test_a_killed_worker_resumes_to_the_same_result(
    runner: Callable[..., Any], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    process = runner(tmp_path)
    os.kill(worker_of(wait_for_epochs(tmp_path, 4)), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output.decode()
    assert numbers(tmp_path) == undisturbed
    attempts = [json.loads(p.read_text())["attempts"] for p in tmp_path.glob("**/status.json")]
    assert max(attempts) == 2


def test_a_killed_runner_is_continued_by_the_next(
    runner: Callable[..., Any], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    process = runner(tmp_path)
    wait_for_epochs(tmp_path, 4)
    process.kill()
    process.communicate()
    assert len(numbers(tmp_path)) < 2
    again = runner(tmp_path)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output.decode()
    assert numbers(tmp_path) == undisturbed


def test_two_runners_share_the_work(
    runner: Callable[..., Any], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    both = [runner(tmp_path, "launcher.workers=1") for _ in range(2)]
    for process in both:
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output.decode()
    assert numbers(tmp_path) == undisturbed
    attempts = [json.loads(p.read_text())["attempts"] for p in tmp_path.glob("**/status.json")]
    assert attempts == [1, 1]


def test_interrupting_leaves_a_store_that_continues(
    runner: Callable[..., Any], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    process = runner(tmp_path)
    wait_for_epochs(tmp_path, 4)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    states = {json.loads(p.read_text())["state"] for p in tmp_path.glob("**/status.json")}
    assert "interrupted" in states, output.decode()
    again = runner(tmp_path)
    again.communicate(timeout=120)
    assert numbers(tmp_path) == undisturbed
