"""Runs packed into jobs, jobs into arrays; the queue as the store and the scheduler tell it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.launch import slurm_queue, slurm_submit
from benchmarks.launch.planned import LaunchError, PlannedRun
from benchmarks.launch.slurm_jobs import Needs, arrays, in_words
from benchmarks.launch.slurm_queue import Queue, QueuedJob, Submission
from benchmarks.plan import expand, parse
from benchmarks.sections import LauncherConfig, SlurmConfig
from benchmarks.status import print_status
from benchmarks.store import Store
from tests.benchmarks.pool_bench import Bench, key

LAUNCHER = LauncherConfig(name="slurm", threads=2)
HOUR = 3600.0


def planned(seed: int, seconds: float | None = None, **options: object) -> PlannedRun:
    return replace(PlannedRun(key(seed), {}, seconds), **options)  # type: ignore[arg-type]


def sizes(runs: list[PlannedRun], launcher: LauncherConfig = LAUNCHER) -> list[list[int]]:
    return [[len(job.runs) for job in jobs] for jobs in arrays(runs, launcher, "cuda").values()]


def test_short_runs_share_a_job_and_long_ones_do_not() -> None:
    # 30 minutes are the default: three of 600 s fit, a fourth would not.
    assert sizes([planned(seed, 600) for seed in range(7)]) == [[3, 3], [1]]
    assert sizes([planned(seed, 2 * HOUR) for seed in range(3)]) == [[1, 1, 1]]
    assert sizes([planned(seed) for seed in range(3)]) == [[1, 1, 1]], "nobody knows how long"


def test_groups_that_are_trained_together_are_never_split() -> None:
    runs = [planned(seed, 1000, group="1" if seed < 4 else "2") for seed in range(8)]
    assert sizes(runs) == [[4, 4]]
    short = [planned(seed, 100, group=str(seed // 3)) for seed in range(9)]
    ((job,),) = arrays(short, LAUNCHER, "cpu").values()
    assert [run.group for run in job.runs] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3


def test_jobs_with_other_needs_are_other_arrays() -> None:
    runs = [
        planned(0, HOUR),
        planned(1, HOUR, devices=2),
        planned(2, HOUR, memory=10**10),
        planned(3, 10 * HOUR),
        planned(4, HOUR),
    ]
    found = arrays(runs, LAUNCHER, "auto")
    seeds = {needs: [job.runs[0].key.seed for job in jobs] for needs, jobs in found.items()}
    assert seeds == {
        Needs(devices=1, gpu=True, minutes=120, mem_gb=None, cpus=2): [0, 4],
        Needs(devices=2, gpu=True, minutes=120, mem_gb=None, cpus=4): [1],
        Needs(devices=1, gpu=True, minutes=120, mem_gb=32.0, cpus=2): [2],
        Needs(devices=1, gpu=True, minutes=960, mem_gb=None, cpus=2): [3],
    }


def test_no_job_asks_for_more_than_the_partition_gives() -> None:
    launcher = replace(LAUNCHER, slurm=SlurmConfig(max_minutes=90, mem_gb=7.5, cpus=3))
    (needs,) = arrays([planned(0, 100 * HOUR)], launcher, "cpu")
    assert needs == Needs(devices=1, gpu=False, minutes=90, mem_gb=7.5, cpus=3)


def test_a_plan_tells_jobs_and_device_hours() -> None:
    runs = [planned(0, 2 * HOUR), planned(1, HOUR, devices=4)]
    assert in_words(runs, LAUNCHER, "cuda") == (
        "slurm: 2 jobs in 2 arrays, about 6 device hours (limits: 12)"
    )
    assert "unknown" in in_words([planned(0)], LAUNCHER, "cuda")
    assert "for the 1 whose" in in_words([planned(0), planned(1, HOUR)], LAUNCHER, "cuda")


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainer.accelerator=mps.*auto, cuda, cpu"):
        arrays([planned(0)], LAUNCHER, "mps")
    with pytest.raises(ValueError, match=r"launcher\.slurm\.parallelism=0 must be at least 1"):
        expand(parse(["dataset=JapaneseVowels", "launcher=slurm", "launcher.slurm.parallelism=0"]))
    with pytest.raises(ValueError, match=r"unknown key 'launcher\.workers'"):
        expand(parse(["dataset=JapaneseVowels", "launcher=slurm", "launcher.workers=2"]))
    with pytest.raises(ValueError, match=r"unknown key 'launcher\.slurm\.partition'"):
        expand(parse(["dataset=JapaneseVowels", "launcher.slurm.partition=gpu"]))


def test_a_machine_without_slurm_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"sbatch, squeue.*launcher=local"):
        slurm_submit.require()


# The queue


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for `squeue` and `scancel`: says what is in `queue`, notes what it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    bodies = {"squeue": f"cat {tmp_path}/queue", "scancel": f"echo $@ >> {tmp_path}/told"}
    for name, body in bodies.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def test_the_queue_knows_the_job_of_a_run(scheduler: Path) -> None:
    root = scheduler / "results"
    first = slurm_queue.record(root, [[key(0), key(1)], [key(2)], [key(3)]])
    second = slurm_queue.record(root, [[key(4)]])
    (scheduler / "queue").write_text(
        f"{first.name}|17|0|RUNNING|None\n"
        f"{first.name}|17|1|PENDING|Resources\n"
        f"{first.name}|17|2|CANCELLED|None\n"
        f"{second.name}|18|N/A|NODE_FAIL|None\n"
    )
    queue = slurm_queue.look(root)
    assert queue.job(key(1)) == QueuedJob("17_0", "RUNNING", "None")
    assert queue.job(key(2)) == QueuedJob("17_1", "PENDING", "Resources")
    assert queue.job(key(3)) is None
    assert queue.cancelled(key(3))
    assert queue.job(key(4)) is None
    assert not queue.cancelled(key(4)), "a lost node is no decision of anybody"
    assert not queue.submitted(key(5))


def test_a_run_that_was_submitted_again_is_judged_by_its_last_job() -> None:
    runs = ((str(key(0)),),)
    submissions = [Submission("attention-1", runs), Submission("attention-2", runs)]
    jobs = {("attention-1", 0): QueuedJob("1", "CANCELLED")}
    assert not Queue(submissions, jobs).cancelled(key(0))
    assert Queue(submissions[:1], jobs).cancelled(key(0))


def test_cancel_names_the_jobs_that_are_left(scheduler: Path) -> None:
    root = scheduler / "results"
    old = slurm_queue.record(root, [[key(0)]])
    new = slurm_queue.record(root, [[key(1)], [key(2)]])
    (scheduler / "queue").write_text(
        f"{old.name}|3|N/A|COMPLETED|None\n{new.name}|4|0|RUNNING|None\n{new.name}|4|1|FAILED|None\n"
    )
    assert [job.number for job in slurm_queue.cancel(root)] == ["4_0"]
    assert (scheduler / "told").read_text() == "4_0\n"
    marked = {one.name: one.cancelled for one in slurm_queue.submissions(root)}
    assert marked == {old.name: False, new.name: True}


def test_status_tells_waiting_from_lost(
    scheduler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(scheduler / "results")
    for seed in range(4):
        store.prepare(key(seed), {})
    submission = slurm_queue.record(store.root, [[key(0)], [key(1)], [key(2)]])
    (scheduler / "queue").write_text(
        f"{submission.name}|5|0|PENDING|Priority\n{submission.name}|5|1|FAILED|None\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.claims.this_machine", lambda: "another")
        claim = store.run(key(2)).claim()
    assert claim is not None
    store.run(key(2)).set_status("running")
    print_status(store)
    said = capsys.readouterr().out
    assert "1 under way" in said
    assert "1 wait in the queue (1 Priority)" in said
    assert "1 lost: whoever worked on them shows no sign of life" in said
    assert said.rstrip().endswith(str(key(1)))
    heart = next((store.run(key(2)).path / "claim").iterdir())
    claim._released.set()
    claim._thread.join()
    os.utime(heart, (0, 0))
    print_status(store)
    assert "2 lost" in capsys.readouterr().out
    (scheduler / "bin" / "squeue").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    print_status(store)
    assert "The queue cannot be asked (squeue: no controller)" in capsys.readouterr().out


# Inside a job


def test_a_job_that_is_told_to_end_saves_its_run_and_asks_to_be_requeued(bench: Bench) -> None:
    code = """
import os, signal, sys
from benchmarks.launch.planned import PlannedRun
from benchmarks.launch.slurm_task import JobWork
from pathlib import Path
from tests.benchmarks.pool_bench import EXECUTOR, key

config = {"mode": "ok", "epochs": 50, "seconds": 0.2, "side": sys.argv[2]}
runs = (PlannedRun(key(0), config),)
work = JobWork(Path(sys.argv[1]), 60.0, runs, 1, 1, 3, None, ("job",), EXECUTOR)
signal.signal(signal.SIGUSR2, lambda *_: (print("requeued", flush=True), os._exit(0)))
work()
print("not requeued")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(bench.store.root), str(bench.side)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "start" not in process.stdout.readline():
        assert process.poll() is None
    (claim,) = (bench.get(0).path / "claim").iterdir()
    worker = int(claim.stem.split("-")[2])
    for pid in (worker, process.pid):  # the scheduler tells every process of the job
        os.kill(pid, signal.SIGUSR2)
    said, _ = process.communicate(timeout=60)
    assert said.splitlines()[-1] == "requeued", said
    status = bench.get(0).status()
    assert (status["state"], status["attempts"]) == ("interrupted", 1)
