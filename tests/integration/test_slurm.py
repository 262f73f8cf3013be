"""Runs on a real SLURM on this machine: signalled, killed, cancelled, left by their submitter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.launch import slurm_queue
from benchmarks.store import Run, Store

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("local_slurm.sh")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
EPOCHS = 30  # enough to find a run in the middle before all have ended
ASKED = (
    "dataset=JapaneseVowels",
    "attention=standard,quest",
    "seeds=6",
    "synthetic=true",
    f"budget.max_epochs={EPOCHS}",
    "recipe.batch_size=4",
    "trainer.checkpoint_every_s=0",
    "trainer.accelerator=cpu",
)
ON_SLURM = ("launcher=slurm", "launcher.slurm.parallelism=2", "launcher.slurm.mem_gb=0.5")
PATIENCE_SECONDS = 400.0  # a guard against hanging: an idle machine needs a minute or two


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A SLURM controller and a node, on ports that nobody uses."""
    commands = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
    missing = [command for command in commands if shutil.which(command, path=PATH) is None]
    if missing:
        pytest.skip(f"SLURM is not installed, {', '.join(missing)}: see local_slurm.sh")
    # Not pytest's own folder: munge wants its socket where others may look.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_SLURM_PORT", str(two_free_ports()))
        patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
        patch.setenv("PATH", PATH)
        try:
            subprocess.run([SCRIPT, "start", folder], check=True)
            yield
        finally:
            subprocess.run([SCRIPT, "stop", folder], check=True)


def two_free_ports() -> int:
    """A free port of this machine whose successor is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


Program = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Starts `run_all.py` over the store in the test's folder."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "run_all.py", *arguments],
            cwd=ROOT,
            env={**os.environ, "RESULTS_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def in_the_middle(store: Store, *others: Run) -> Run:
    """A run that has trained some epochs and has some to go."""

    def look() -> Run | None:
        for run in store.runs():
            epochs = sum("values" in record for record in run.metrics())
            saved = list(run.path.glob("checkpoints/*.resume.ckpt"))
            spared = run.key in {other.key for other in others}
            if (
                2 <= epochs < EPOCHS - 10
                and saved
                and not spared
                and run.status()["state"] == "running"
            ):
                return run
        return None

    found: Run = wait_for("a run in the middle", look)
    return found


def scancel(*options: str) -> Callable[[Run, str], None]:
    """Tell SLURM to signal a job, or to cancel it."""

    def act(run: Run, number: str) -> None:
        # Not waited for: told that the job is just ending, it tries again for a minute, in which
        # all other runs end, or the job's next start would be struck.
        with subprocess.Popen(
            ["scancel", *options, number], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as asking:
            try:
                wait_for("the run to stop", lambda: run.status()["state"] != "running")
            finally:
                asking.kill()

    return act


def kill(run: Run, number: str) -> None:
    """Kill the processes of a job behind SLURM's back, as the kernel does for want of memory."""
    (claim,) = (run.path / "claim").iterdir()
    worker = int(claim.stem.split("-")[2])
    status = Path(f"/proc/{worker}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
    for pid in (int(parent), worker):
        os.kill(pid, signal.SIGKILL)


def strike(store: Store, act: Callable[[Run, str], None], *spared: Run) -> tuple[Run, str]:
    """Do something to the job of some run in the middle.

    Returns:
        The run, and the number of its job.
    """

    def attempt() -> tuple[Run, str] | None:
        run = in_the_middle(store, *spared)
        job = slurm_queue.look(store.root).job(run.key)
        with suppress(OSError, ValueError):  # it has just ended; then another one has to serve
            if job is not None:
                act(run, job.number)
                if run.result() is None:
                    return run, job.number
        return None

    struck: tuple[Run, str] = wait_for("a job to strike", attempt)
    return struck


def numbers(root: Path) -> dict[str, Any]:
    """What equal runs must agree on, by run."""
    found = {}
    for run in Store(root).runs():
        result = run.result()
        assert result is not None, (run.key, run.status())
        history = [record for record in run.metrics() if "values" in record]
        found[str(run.key)] = (result["metrics"], result["selected"], history)
    return found


@pytest.mark.slow
def test_runs_survive_whatever_the_scheduler_does(
    cluster: None, program: Program, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path)
    first = program("run", *ASKED, *ON_SLURM)
    signalled, number = strike(store, scancel("--signal=USR2"))
    killed, _ = strike(store, kill, signalled)
    wait_for("the killed run's job", lambda: len(slurm_queue.submissions(tmp_path)) == 2)
    wait_for("the killed run", lambda: slurm_queue.look(tmp_path).job(killed.key))
    first.kill()
    cancelled, _ = strike(store, scancel(), signalled, killed)
    wait_for("it to stop", lambda: cancelled.status()["state"] == "interrupted")
    wait_for("its job", lambda: slurm_queue.look(tmp_path).cancelled(cancelled.key))

    second = program("run", *ASKED, *ON_SLURM)
    output, _ = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, output

    submitted = [list(one.jobs) for one in slurm_queue.submissions(tmp_path)]
    assert [len(jobs) for jobs in submitted] == [12, 1, 1], output
    assert submitted[1:] == [[(str(killed.key),)], [(str(cancelled.key),)]]
    log = (slurm_queue.logs(tmp_path) / f"{number}_0_log.out").read_text()
    assert "Requeued" in log
    again = {run.key for run in (signalled, killed, cancelled)}
    for run in store.runs():
        assert run.status()["attempts"] == (2 if run.key in again else 1), run.key
        text = (run.path / "log.txt").read_text()
        assert text.count("=== done") == 1
        assert text.count("attempt ") == run.status()["attempts"], "the log of an attempt is lost"
    assert "=== interrupted" in (signalled.path / "log.txt").read_text()

    here = tmp_path_factory.mktemp("local")
    subprocess.run(
        [sys.executable, "run_all.py", "run", *ASKED],
        cwd=ROOT,
        env={**os.environ, "RESULTS_DIR": str(here)},
        check=True,
        capture_output=True,
    )
    assert numbers(tmp_path) == numbers(here)


def test_cancel_ends_the_jobs_of_this_store_alone(
    cluster: None, program: Program, tmp_path: Path
) -> None:
    cores = f"--cpus-per-task={os.cpu_count()}"
    wrapped = ["sbatch", "--parsable", cores, "--wrap", "sleep 600", f"--output={os.devnull}"]
    foreign = subprocess.run(wrapped, check=True, capture_output=True, text=True).stdout.strip()
    try:
        submit = program("run", *ASKED, *ON_SLURM, "launcher.slurm.wait=false")
        output, _ = submit.communicate(timeout=PATIENCE_SECONDS)
        assert submit.returncode == 0, output
        assert "12 runs in 12 jobs" in output
        again = program("run", *ASKED, *ON_SLURM, "launcher.slurm.wait=false")
        output, _ = again.communicate(timeout=PATIENCE_SECONDS)
        assert "12 runs are queued" in output
        assert len(slurm_queue.submissions(tmp_path)) == 1
        output, _ = program("status").communicate(timeout=PATIENCE_SECONDS)
        assert "12 wait in the queue" in output
        output, _ = program("cancel").communicate(timeout=PATIENCE_SECONDS)
        assert "12 jobs cancelled" in output
        squeue = ["squeue", "--noheader", "--format=%i"]
        left = subprocess.run(squeue, check=True, capture_output=True, text=True).stdout.split()
        assert left == [foreign]
        queue = slurm_queue.look(tmp_path)
        assert all(queue.cancelled(run.key) for run in Store(tmp_path).runs())
    finally:
        subprocess.run(["scancel", foreign], check=True)
    assert json.loads(next(tmp_path.glob(".slurm/*.json")).read_text())["cancelled"]
