"""The SLURM launcher: submits what is missing as job arrays, and watches the store fill.

Jobs only ever meet in the store: this process may end, on purpose or not, and another one take its
place. It asks the scheduler what is queued and the store what is done, never a job for its result:
a job that is killed gives none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import claims
from benchmarks.launch import slurm_queue, slurm_submit
from benchmarks.launch.display import Display, Totals, make_display
from benchmarks.launch.perform import Outcome, is_settled
from benchmarks.launch.planned import LaunchError, PlannedRun, Summary
from benchmarks.launch.signals import Signals
from benchmarks.launch.slurm_jobs import Job, Needs, arrays
from benchmarks.launch.slurm_queue import Queue, QueueError
from benchmarks.launch.tasks import Task, by_group, in_words, label_of, open_tasks, settle
from benchmarks.sections import LauncherConfig
from benchmarks.states import OUTCOMES, RunKey
from benchmarks.store import Store

_MOST_IN_ARRAY = 1000  # the scheduler's own default for MaxArraySize, less one
_POLL_SECONDS = 2.0
_LOOKS_BEFORE_LOST = 2  # a network file system may show an outcome later than the queue does


@dataclass(frozen=True)
class SlurmLauncher:
    """Job arrays over one store.

    Attributes:
        store: where the runs are, on a file system that all nodes see.
        config: what the jobs ask for.
        accelerator: `trainer.accelerator` of the runs.
        executor: `module:function` that carries out a run.
        display: None chooses by whether standard output is a terminal.
        retry: final states of which runs are carried out again from the start.
    """

    store: Store
    config: LauncherConfig
    accelerator: str
    executor: str = "benchmarks.runner:execute"
    display: Display | None = None
    retry: Collection[str] = ()

    def run(self, planned: Sequence[PlannedRun]) -> Summary:
        """Submit what is missing and not queued, and wait for all, if that is asked for.

        Ctrl-C, or SIGTERM, ends the waiting: the jobs go on.

        Raises:
            StoreWriteError: the store cannot be written.
            LaunchError: there is no SLURM here, or it does not take the jobs.
        """
        slurm_submit.require()
        return _Session(self, planned).run()


class _Session:
    """One call of :meth:`SlurmLauncher.run`."""

    def __init__(self, launcher: SlurmLauncher, planned: Sequence[PlannedRun]) -> None:
        self._launcher = launcher
        self._store = launcher.store
        self._display = make_display() if launcher.display is None else launcher.display
        self._planned = {run.key: run for run in planned}
        self._tasks: dict[RunKey, Task] = {}
        self._states: dict[RunKey, str] = {}
        self._reasons: dict[RunKey, str] = {}
        self._executed = 0
        self._running: set[RunKey] = set()
        self._elsewhere = 0
        self._queued = 0
        self._missed: Counter[RunKey] = Counter()  # looks in a row without a job for it
        self._submissions: Counter[RunKey] = Counter()
        self._said: set[str] = set()

    def run(self) -> Summary:
        begin = time.monotonic()
        self._store.check_writable()
        self._tasks, settled = open_tasks(
            self._store, list(self._planned.values()), self._launcher.retry
        )
        for key, status in settled.items():
            self._states[key] = status["state"]
            if status["reason"]:
                self._reasons[key] = status["reason"]
        self._display.open(self._totals())
        try:
            with Signals() as signals:
                self._submit_missing()
                if self._launcher.config.slurm.wait:
                    self._wait(signals)
        finally:
            self._display.close()
        if self._tasks:
            self._display.notice(
                f"{len(self._tasks)} of {len(self._planned)} runs have not ended. Jobs in the "
                "queue go on without this command: `make status` tells how far they are, the same "
                "command comes back to them and submits what is missing, `make cancel` ends them."
            )
        for key, task in self._tasks.items():
            self._states[key] = task.run.status()["state"]
        return Summary(
            states={key: self._states[key] for key in self._planned},
            reasons=self._reasons,
            executed=self._executed,
            seconds=time.monotonic() - begin,
            interrupted=any(state not in OUTCOMES for state in self._states.values()),
        )

    # Submitting

    def _submit_missing(self) -> None:
        """Submit runs for which there is no job and that nobody works on."""
        with self._one_at_a_time():
            try:
                queue = slurm_queue.look(self._store.root)
            except QueueError as error:
                raise LaunchError(f"the scheduler does not answer: {error}") from error
            free = [
                task
                for task in self._tasks.values()
                if queue.job(task.planned.key) is None and not self._is_held(task)
            ]
            self._submit(free)
        waiting = len(self._tasks) - len(free)
        if waiting:
            self._display.notice(f"{waiting} runs are queued or under way already")

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Of several launchers on one store, one looks and submits at a time."""
        folder = slurm_queue.folder(self._store.root) / "claim"
        folder.parent.mkdir(parents=True, exist_ok=True)
        observer = claims.Observer(self._store.stale_seconds)
        while (claim := claims.acquire(folder, observer)) is None:
            time.sleep(_POLL_SECONDS / 4)
        with claim:
            yield

    def _is_held(self, task: Task) -> bool:
        holder = task.run.holder()
        return holder is not None and not task.run.is_dead(holder)

    def _submit(self, tasks: Sequence[Task]) -> None:
        runs = [replace(task.planned, attempts=task.attempts) for task in tasks]
        found = arrays(runs, self._launcher.config, self._launcher.accelerator)
        for needs, jobs in found.items():
            for begin in range(0, len(jobs), _MOST_IN_ARRAY):
                self._hand_over(needs, jobs[begin : begin + _MOST_IN_ARRAY])

    def _hand_over(self, needs: Needs, jobs: Sequence[Job]) -> None:
        number = slurm_submit.submit(
            self._store, needs, jobs, self._launcher.config, self._launcher.executor
        )
        runs = [run.key for job in jobs for run in job.runs]
        self._submissions.update(runs)
        for key in runs:
            self._missed.pop(key, None)
        self._display.notice(
            f"submitted {number}: {len(runs)} runs in {len(jobs)} jobs, "
            f"{self._launcher.config.slurm.parallelism} at a time, of {needs.minutes} min at most; "
            f"logs: {slurm_queue.logs(self._store.root)}"
        )

    # Waiting

    def _wait(self, signals: Signals) -> None:
        pause = min(30.0, _POLL_SECONDS + len(self._tasks) / 100)
        while self._tasks and not signals.count:
            try:
                # Before the store: what has left the queue has told the store how it ended.
                queue = slurm_queue.look(self._store.root)
            except QueueError as error:
                self._say(f"{error}; the store is watched on")
                queue = None
            self._read(queue)
            self._display.totals(self._totals())
            until = time.monotonic() + pause
            while self._tasks and not signals.count and time.monotonic() < until:
                time.sleep(0.1)

    def _read(self, queue: Queue | None) -> None:
        """Look at every run that has not ended."""
        ended: list[tuple[Task, Outcome]] = []
        lost: list[Task] = []
        left: list[Task] = []
        self._queued = self._elsewhere = 0
        running = set()
        for key, task in self._tasks.items():
            status = task.run.check()
            if is_settled(status, task.attempts):
                ended.append((task, _outcome(key, status)))
                continue
            job = None if queue is None else queue.job(key)
            held = self._is_held(task)
            if status["state"] == "running" and held:
                running.add(key)
                if key not in self._running:
                    self._display.started(task.label, status["attempts"])
            elif job is not None:
                self._queued += 1
                if "held" in job.reason.lower():
                    self._say(f"job {job.number} waits: {job.reason} (scontrol release continues)")
            if job is not None or held or queue is None:
                self._missed.pop(key, None)
            elif queue.cancelled(key):
                left.append(task)
            else:
                self._missed[key] += 1
                if self._missed[key] >= _LOOKS_BEFORE_LOST:
                    lost.append(task)
        self._running = running
        self._end(ended)
        self._leave(left)
        if lost:
            self._offer_again(lost)

    def _offer_again(self, lost: Sequence[Task]) -> None:
        """Jobs have ended without a word: killed, out of memory, their node lost."""
        spent, again = [], []
        most = self._launcher.config.max_attempts
        spent = [task for task in lost if self._submissions[task.planned.key] >= most]
        again = [task for task in lost if self._submissions[task.planned.key] < most]
        logs = slurm_queue.logs(self._store.root)
        ended = []
        for task in spent:
            jobs = self._submissions[task.planned.key]
            reason = f"{jobs} jobs ended without an outcome; see {logs}"
            if (outcome := settle(task, "failed", reason, 0.0)) is not None:
                ended.append((task, outcome))
        self._end(ended)
        for task in again:
            self._display.ended(task.label, "again", "its job is gone; it is submitted again", 0.0)
        if again:
            self._submit_missing()

    def _leave(self, left: Sequence[Task]) -> None:
        """Runs whose job the user has ended: nothing will come of them in this call."""
        for task in left:
            del self._tasks[task.planned.key]
            self._states[task.planned.key] = task.run.status()["state"]
            self._display.ended(task.label, "interrupted", "its job was cancelled", 0.0)

    def _end(self, ended: Sequence[tuple[Task, Outcome]]) -> None:
        for task, outcome in ended:
            key = task.planned.key
            assert outcome.state is not None
            del self._tasks[key]
            self._states[key] = outcome.state
            if outcome.reason:
                self._reasons[key] = outcome.reason
            self._executed += 1
        for part in by_group(ended):
            seconds = sum(outcome.seconds for _, outcome in part)
            self._display.totals(self._totals())
            self._display.ended(label_of([task for task, _ in part]), *in_words(part), seconds)

    def _say(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self._said:
            self._said.add(text)
            self._display.notice(text)

    def _totals(self) -> Totals:
        return Totals(
            total=len(self._planned),
            states=Counter(self._states.values()),
            running=len(self._running),
            queued=self._queued,
        )


def _outcome(key: RunKey, status: Mapping[str, Any]) -> Outcome:
    seconds = float(status["details"].get("seconds") or 0.0)
    return Outcome(key, status["state"], status["reason"], executed=True, seconds=seconds)
