"""What was submitted to a cluster for a store, and what its queue says of it.

A submission is one file in `RESULTS_DIR/.slurm/`, written *before* the jobs are handed over and
named like them, so that no job is ever in the queue without the store knowing of it:

    {"schema": 1, "time": …, "cancelled": false, "jobs": [[run, …], …]}

Job `n` of the array carries out the runs of `jobs[n]`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.files import CorruptFileError, read_json, to_json, write_atomic, writing
from benchmarks.states import SCHEMA, RunKey, now

PREFIX = "attention-"
_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "REVOKED",
    "TIMEOUT",
)
_TIMEOUT_SECONDS = 60


class QueueError(RuntimeError):
    """The scheduler does not answer; the message is its own."""


@dataclass(frozen=True)
class Submission:
    """An array of jobs, or one job.

    Attributes:
        name: of its jobs; unique.
        jobs: the runs of each, by their place in the store.
        cancelled: whether the user has ended it.
        time: when it was made.
    """

    name: str
    jobs: tuple[tuple[str, ...], ...]
    cancelled: bool = False
    time: str = ""


@dataclass(frozen=True)
class QueuedJob:
    """A job as the scheduler sees it.

    Attributes:
        number: what `scancel` takes: `17_3`, or `17` outside an array.
        state: the scheduler's word: PENDING, RUNNING, COMPLETED…
        reason: why it waits.
    """

    number: str
    state: str
    reason: str = ""

    @property
    def active(self) -> bool:
        """Whether it is still going to do something."""
        return self.state not in _ENDED


class Queue:
    """The submissions of a store beside one look at the queue.

    Args:
        submissions: in the order in which they were made.
        jobs: by name and place in the array; those long gone are missing.
    """

    def __init__(
        self, submissions: Sequence[Submission], jobs: Mapping[tuple[str, int], QueuedJob]
    ) -> None:
        self._jobs = jobs
        self._places: dict[str, list[tuple[Submission, int]]] = {}
        for submission in submissions:
            for index, runs in enumerate(submission.jobs):
                for run in runs:
                    self._places.setdefault(run, []).append((submission, index))

    def job(self, key: RunKey) -> QueuedJob | None:
        """The job that is going to carry out a run, or does so now; None if there is none."""
        found = [
            job
            for submission, index in self._places.get(str(key), [])
            if (job := self._jobs.get((submission.name, index))) is not None and job.active
        ]
        return max(found, key=lambda job: job.state == "RUNNING", default=None)

    def submitted(self, key: RunKey) -> bool:
        """Whether a run was ever submitted."""
        return str(key) in self._places

    def cancelled(self, key: RunKey) -> bool:
        """Whether somebody has ended the job that a run was last submitted with."""
        if not self.submitted(key):
            return False
        submission, index = self._places[str(key)][-1]
        job = self._jobs.get((submission.name, index))
        return submission.cancelled or (job is not None and job.state == "CANCELLED")


def folder(root: Path) -> Path:
    """Where a store keeps what it knows of a cluster."""
    return root / ".slurm"


def logs(root: Path) -> Path:
    """Where the logs of the jobs are, all attempts of each in one file."""
    return folder(root) / "logs"


def submissions(root: Path) -> list[Submission]:
    """What was submitted for a store, the oldest first. A damaged file is left out."""
    found = []
    for path in folder(root).glob(f"{PREFIX}*.json"):
        try:
            raw = read_json(path, SCHEMA)
            assert raw is not None
            jobs = tuple(tuple(map(str, runs)) for runs in raw["jobs"])
            found.append(Submission(path.stem, jobs, bool(raw["cancelled"]), str(raw["time"])))
        except (CorruptFileError, KeyError, TypeError):
            continue  # its jobs are then unknown; claims keep their runs from being done twice
    return sorted(found, key=lambda submission: (submission.time, submission.name))


def record(root: Path, jobs: Iterable[Iterable[RunKey]]) -> Submission:
    """Note what is about to be submitted.

    Raises:
        StoreWriteError: the store cannot be written.
    """
    named = tuple(tuple(str(key) for key in runs) for runs in jobs)
    submission = Submission(f"{PREFIX}{os.urandom(6).hex()}", named, time=now())
    _write(root, submission)
    return submission


def mark_cancelled(root: Path, submission: Submission) -> None:
    """Note that nobody shall submit the runs of a submission again by himself.

    Raises:
        StoreWriteError: the store cannot be written.
    """
    _write(root, replace(submission, cancelled=True))


def _write(root: Path, submission: Submission) -> None:
    path = folder(root) / f"{submission.name}.json"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "schema": SCHEMA,
        "time": submission.time,
        "cancelled": submission.cancelled,
        "jobs": submission.jobs,
    }
    write_atomic(path, to_json(content))


def look(root: Path) -> Queue:
    """Ask the scheduler about the submissions of a store.

    Raises:
        QueueError: it does not answer.
    """
    known = submissions(root)
    return Queue(known, jobs_named([submission.name for submission in known]))


def jobs_named(names: Sequence[str]) -> dict[tuple[str, int], QueuedJob]:
    """Jobs by their name and their place in the array, 0 outside one.

    Raises:
        QueueError: the scheduler does not answer.
    """
    if not names:
        return {}
    said = _ask(
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        f"--name={','.join(names)}",
        "--format=%j|%F|%K|%T|%r",
    )
    found = {}
    for line in said.splitlines():
        name, number, index, state, reason = line.strip().split("|", 4)
        within = index.isdecimal()
        place = (name, int(index) if within else 0)
        found[place] = QueuedJob(f"{number}_{index}" if within else number, state, reason)
    return found


def cancel(root: Path) -> list[QueuedJob]:
    """End all jobs that were submitted for a store and have not ended.

    Returns:
        These jobs.

    Raises:
        QueueError: the scheduler does not answer.
        StoreWriteError: the store cannot be written.
    """
    known = submissions(root)
    jobs = jobs_named([submission.name for submission in known])
    active = {place: job for place, job in jobs.items() if job.active}
    for submission in known:
        # First the note: whoever watches must not take the jobs for lost.
        if any(name == submission.name for name, _ in active):
            mark_cancelled(root, submission)
    numbers = [job.number for job in active.values()]
    if numbers:
        _ask("scancel", *numbers)
    return list(active.values())


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
        )
    except FileNotFoundError as error:
        raise QueueError(f"{command[0]} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"{command[0]} did not answer in {_TIMEOUT_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        raise QueueError(f"{command[0]}: {error.stderr.strip() or error.returncode}") from error
    return done.stdout
