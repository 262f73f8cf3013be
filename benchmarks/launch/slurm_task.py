"""What runs inside a job of a cluster: a local pool over the job's share of the runs."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.launch.display import PlainDisplay
from benchmarks.launch.local import LocalPool
from benchmarks.launch.planned import PlannedRun
from benchmarks.store import Store


@dataclass(frozen=True)
class JobWork:
    """A job's work; called by submitit on the node, again after each requeue.

    Attributes:
        root: the store.
        stale_seconds: of the store.
        runs: what to carry out, one after the other.
        devices: how many the job has.
        threads: CPU threads a run and device.
        max_attempts: how often a run may kill its worker.
        time_limit: seconds a run.
        arguments: command line of the program, for the provenance.
        executor: `module:function` that carries out a run.
    """

    root: Path
    stale_seconds: float
    runs: tuple[PlannedRun, ...]
    devices: int
    threads: int
    max_attempts: int
    time_limit: float | None
    arguments: tuple[str, ...]
    executor: str = "benchmarks.runner:execute"

    def __call__(self) -> dict[str, int]:
        """Bring the runs to an end, or stop them in time when the job is about to end.

        Returns:
            Number of runs by state, for the job's log.
        """
        notice = threading.Event()
        sys.argv[:] = self.arguments
        requeue = signal.signal(signal.SIGUSR2, lambda *_: notice.set())
        try:
            pool = LocalPool(
                Store(self.root, stale_seconds=self.stale_seconds),
                workers=1,
                threads=self.threads,
                executor=self.executor,
                max_attempts=self.max_attempts,
                time_limit=self.time_limit,
                display=PlainDisplay(sys.stdout),
                asked_to_stop=notice.is_set,
            )
            summary = pool.run(self.runs)
        finally:
            signal.signal(signal.SIGUSR2, requeue)
        if notice.is_set() and summary.interrupted:
            # Only now that all is saved: submitit's answer is to requeue the job and to exit.
            signal.raise_signal(signal.SIGUSR2)
        return summary.counts

    def checkpoint(self) -> Any:
        """What submitit starts after a requeue: the same; how far it is stands in the store."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
