"""The local launcher: a pool of worker processes over one store.

Several pools, on one machine or on many, may work on one store at the same time. Each run is
claimed by the worker that carries it out; a pool waits for what others have claimed, counts it
when it is done, and carries on with it when they die.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from benchmarks.claims import Holder
from benchmarks.launch.display import Display, Totals, duration, headline, make_display
from benchmarks.launch.estimate import Estimator, InProgress
from benchmarks.launch.planned import LaunchError, PlannedRun, Summary, labels
from benchmarks.launch.process import WorkerProcess
from benchmarks.launch.signals import Signals
from benchmarks.launch.worker import Offer, Outcome, Settings, is_settled
from benchmarks.states import FINAL, OUTCOMES, RunKey
from benchmarks.store import CorruptFileError, Run, Store, StoreWriteError

_TICK_SECONDS = 0.2
_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class LocalPool:
    """Worker processes on this machine.

    Attributes:
        store: where the runs are.
        workers: how many runs at a time.
        threads: CPU threads of each.
        executor: `module:function` that carries out a run in a worker.
        max_attempts: how often a run may kill its worker before it counts as failed.
        time_limit: seconds after which a run is asked to stop, and ends as `timeout`.
        display: None chooses by whether standard output is a terminal.
        retry: final states (`diverged`, say) of which runs are carried out again from the start.
        grace: seconds that a run gets to stop after its time limit before its worker is killed.
    """

    store: Store
    workers: int
    threads: int
    executor: str = "benchmarks.runner:execute"
    max_attempts: int = 3
    time_limit: float | None = None
    display: Display | None = None
    retry: Collection[str] = ()
    grace: float = 30.0

    def run(self, planned: Sequence[PlannedRun]) -> Summary:
        """Bring every run to an end. What is done already is not done again.

        Ctrl-C, or SIGTERM, lets each run stop at its next batch as `interrupted`; a second one
        kills the workers. In both cases the same call continues later.

        Raises:
            StoreWriteError: the store cannot be written; the runs can be continued later.
            LaunchError: workers cannot be started.
        """
        return _Session(self, planned).run()


@dataclass
class _Task:
    planned: PlannedRun
    run: Run
    label: str
    attempts: int  # finished ones before this pool; an outcome of a later one is news
    deaths: int = 0
    worker: WorkerProcess | None = None
    dead_holder: Holder | None = None
    elsewhere: bool = False
    look_again: float = 0.0
    progress: Mapping[str, Any] = field(default_factory=dict)


class _Session:
    """One call of :meth:`LocalPool.run`."""

    def __init__(self, pool: LocalPool, planned: Sequence[PlannedRun]) -> None:
        self._pool = pool
        self._planned = {run.key: run for run in planned}
        self._display = make_display() if pool.display is None else pool.display
        self._tasks: dict[RunKey, _Task] = {}  # those that have not ended
        self._states: dict[RunKey, str] = {}
        self._reasons: dict[RunKey, str] = {}
        self._workers: list[WorkerProcess] = []
        self._estimator = Estimator()
        self._executed = 0
        self._failed_starts = 0
        self._signals = Signals()
        self._signals_obeyed = 0
        self._store_error: str | None = None

    def run(self) -> Summary:
        begin = time.monotonic()
        self._prepare()
        self._display.open(self._totals())
        try:
            with self._signals:
                while self._tasks and not (self._stopping and not self._running()):
                    self._obey_signals()
                    self._assign()
                    self._listen()
                    self._bury_dead()
                    self._kill_late()
                    self._display.totals(self._totals())
        finally:
            self._stop_workers()
            for worker in self._workers:
                worker.close(_CLOSE_SECONDS)
            self._display.close()
        if self._store_error is not None:
            raise StoreWriteError(self._store_error)
        for task in self._tasks.values():
            self._states[task.planned.key] = task.run.check()["state"]
        left = sum(state not in OUTCOMES for state in self._states.values())
        if left:
            self._display.notice(
                f"Interrupted with {left} of {len(self._planned)} runs left. Give the same command "
                "again to continue: what is done stays done, the rest goes on from its last "
                "checkpoint."
            )
        return Summary(
            states={key: self._states[key] for key in self._planned},
            reasons=self._reasons,
            executed=self._executed,
            seconds=time.monotonic() - begin,
            interrupted=left > 0,
        )

    @property
    def _stopping(self) -> bool:
        return self._signals.count > 0 or self._store_error is not None

    def _prepare(self) -> None:
        self._pool.store.check_writable()
        names = labels(self._planned)
        for key, planned in self._planned.items():
            run = self._pool.store.prepare(key, planned.config)
            status = run.check()
            if status["state"] in FINAL and status["state"] in self._pool.retry:
                run.reopen(f"was {status['state']}; asked to be done again")
                status = run.check()
            if status["state"] in FINAL:
                self._states[key] = status["state"]
                if status["reason"]:
                    self._reasons[key] = status["reason"]
            else:
                # One that is under way elsewhere may yet fail there: that counts as news.
                attempts = status["attempts"] - (status["state"] == "running")
                self._tasks[key] = _Task(planned, run, names[key], attempts)

    def _obey_signals(self) -> None:
        if self._signals.count > self._signals_obeyed:
            if self._signals_obeyed == 0:
                self._display.notice(
                    "Stopping: runs end at their next batch and can be continued. "
                    "Ctrl-C again kills them."
                )
                self._stop_workers()
            else:
                for worker in self._workers:
                    worker.kill()
            self._signals_obeyed += 1

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()

    # Workers

    def _running(self) -> list[_Task]:
        return [task for task in self._tasks.values() if task.worker is not None]

    def _assign(self) -> None:
        if self._stopping:
            return
        idle = [worker for worker in self._workers if worker.ready and worker.offer is None]
        while idle or len(self._workers) < self._pool.workers:
            task = self._next()
            if task is None:
                return
            if not idle:
                self._spawn()
                return
            task.worker = idle.pop()
            task.worker.give(
                Offer(
                    key=task.planned.key,
                    config=task.planned.config,
                    attempts=task.attempts,
                    presumed_dead=task.dead_holder,
                    time_limit=self._pool.time_limit,
                )
            )

    def _next(self) -> _Task | None:
        """The first run that nobody works on; those that others have ended are counted."""
        now = time.monotonic()
        for task in list(self._tasks.values()):
            if task.worker is not None or task.look_again > now:
                continue
            status = task.run.check()
            if is_settled(status, task.attempts):
                self._end(task, Outcome(status["state"], status["reason"]))
                continue
            holder = task.run.holder()
            if holder is not None and not task.run.is_dead(holder):
                self._leave_to_others(task)
                continue
            task.elsewhere, task.dead_holder = False, holder
            return task
        return None

    def _leave_to_others(self, task: _Task) -> None:
        task.elsewhere = True
        task.look_again = time.monotonic() + _POLL_SECONDS

    def _spawn(self) -> None:
        """Start workers for the runs that wait, up to the number allowed."""
        waiting = sum(task.worker is None and not task.elsewhere for task in self._tasks.values())
        starting = sum(not worker.ready for worker in self._workers)
        free = self._pool.workers - len(self._workers)
        for _ in range(min(free, waiting - starting)):
            settings = Settings(
                root=self._pool.store.root.absolute(),
                stale_seconds=self._pool.store.stale_seconds,
                executor=self._pool.executor,
                threads=self._pool.threads,
                arguments=tuple(sys.argv),
            )
            self._workers.append(WorkerProcess(settings))

    def _dismiss(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        worker.close(grace=0.0)

    def _listen(self) -> None:
        if not self._workers:
            time.sleep(_TICK_SECONDS)
            return
        wait([worker.connection for worker in self._workers], _TICK_SECONDS)
        for worker in list(self._workers):
            self._hear(worker)

    def _hear(self, worker: WorkerProcess) -> None:
        for kind, *rest in worker.messages():
            task = self._tasks.get(worker.offer.key) if worker.offer else None
            if kind == "ready":
                worker.ready = True
                self._failed_starts = 0
            elif kind == "unusable":
                raise LaunchError(f"the executor {self._pool.executor} cannot be used:\n{rest[0]}")
            elif kind == "store":
                self._store_error = rest[0]
                self._stop_workers()
            elif task is not None and kind == "started":
                worker.started = time.monotonic()
                self._display.started(task.label, rest[0])
            elif task is not None and kind == "progress":
                task.progress = rest[0]
                self._display.progress(task.label, rest[0])
            elif task is not None and kind == "ended":
                self._release(task)
                self._take(task, worker, rest[0])

    def _release(self, task: _Task) -> None:
        if task.worker is not None:
            task.worker.offer, task.worker.started = None, None
            task.worker = None
        task.progress = {}

    def _take(self, task: _Task, worker: WorkerProcess, outcome: Outcome) -> None:
        if outcome.state is None:
            self._leave_to_others(task)
        elif outcome.state == "interrupted" and outcome.executed and not self._stopping:
            # Somebody has told this worker alone to stop; it takes no more runs.
            self._dismiss(worker)
            self._offer_again(task, "the worker was told to stop")
        else:
            self._end(task, outcome)
            if outcome.executed and outcome.state in ("failed", "oom"):
                # What went wrong may have damaged the process (a CUDA context never recovers).
                self._dismiss(worker)

    def _bury_dead(self) -> None:
        for worker in list(self._workers):
            if not worker.has_ended():
                continue
            self._hear(worker)  # its last messages; they may dismiss it
            if worker not in self._workers:
                continue
            task = self._tasks.get(worker.offer.key) if worker.offer else None
            obituary = worker.obituary()
            seconds = 0.0 if worker.started is None else time.monotonic() - worker.started
            if task is None and not worker.ready and not self._stopping:
                self._failed_starts += 1
                if self._failed_starts >= self._pool.max_attempts:
                    raise LaunchError(
                        f"workers die while they start ({obituary}):\n{worker.last_words()}"
                    )
            if task is not None and self._store_error is not None:
                self._release(task)  # its worker has tried to say so; the store takes no more
            elif task is not None:
                begun = worker.started is not None
                self._release(task)
                if worker.killed_late:
                    assert self._pool.time_limit is not None
                    reason = (
                        f"did not stop within {duration(self._pool.grace)} after its time limit of "
                        f"{duration(self._pool.time_limit)} and was killed"
                    )
                    self._settle(task, "timeout", reason, seconds)
                elif self._stopping and begun:
                    self._settle(task, "interrupted", "the worker was killed", seconds)
                elif not self._stopping:
                    self._offer_again(task, f"the worker died ({obituary})")
            self._dismiss(worker)

    def _offer_again(self, task: _Task, what: str) -> None:
        task.deaths += 1
        if task.deaths >= self._pool.max_attempts:
            self._settle(task, "failed", f"{task.deaths} attempts, at last: {what}", 0.0)
        else:
            self._display.ended(task.label, "again", f"{what}; it is tried again", 0.0)

    def _kill_late(self) -> None:
        if self._pool.time_limit is None:
            return
        limit = self._pool.time_limit + self._pool.grace
        for worker in self._workers:
            if worker.started is not None and time.monotonic() - worker.started > limit:
                worker.killed_late = True
                worker.kill()

    # Ends

    def _settle(self, task: _Task, state: str, reason: str, seconds: float) -> None:
        """Give a run whose worker is dead its state, unless it has one or somebody else has it."""
        claim = task.run.claim()
        if claim is None:
            self._leave_to_others(task)
            return
        with claim:
            status = task.run.status()
            if is_settled(status, task.attempts):
                state, reason = status["state"], status["reason"]
            else:
                task.run.set_status(state, reason, seconds=round(seconds, 3))
        self._end(task, Outcome(state, reason, executed=True, seconds=seconds))

    def _end(self, task: _Task, outcome: Outcome) -> None:
        key = task.planned.key
        assert outcome.state is not None
        del self._tasks[key]
        self._states[key] = outcome.state
        if outcome.reason:
            self._reasons[key] = outcome.reason
        note = outcome.reason or ""
        if outcome.state == "done":
            with suppress(CorruptFileError):
                note = headline(task.run.result() or {})
        if outcome.executed:
            self._executed += 1
            if outcome.state == "done":
                self._estimator.record(task.planned.estimate, outcome.seconds)
        else:
            note = f"{note} (by another runner)".strip()
        self._display.totals(self._totals())
        self._display.ended(task.label, outcome.state, note, outcome.seconds)

    def _totals(self) -> Totals:
        now = time.monotonic()
        running, waiting = [], []
        for task in self._tasks.values():
            estimate = task.planned.estimate
            if task.worker is None or task.worker.started is None:
                waiting.append(estimate)
            else:
                elapsed = now - task.worker.started
                running.append(InProgress(estimate, elapsed, task.progress.get("seconds_left")))
        return Totals(
            total=len(self._planned),
            states=Counter(self._states.values()),
            running=len(running),
            elsewhere=sum(task.elsewhere for task in self._tasks.values()),
            seconds_left=self._estimator.left(waiting, running, self._pool.workers),
        )
