"""The local launcher: a pool of worker processes over one store.

Several pools, on one machine or on many, may work on one store at the same time. Each run is
claimed by the worker that carries it out; a pool waits for what others have claimed, counts it
when it is done, and carries on with it when they die.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from benchmarks.launch.display import Display, Totals, duration, make_display
from benchmarks.launch.estimate import Estimator
from benchmarks.launch.perform import Outcome
from benchmarks.launch.planned import LaunchError, PlannedRun, Summary
from benchmarks.launch.process import WorkerProcess
from benchmarks.launch.signals import Signals
from benchmarks.launch.slots import Slots
from benchmarks.launch.staff import Staff
from benchmarks.launch.tasks import (
    Task,
    by_group,
    in_words,
    label_of,
    next_free,
    offer,
    open_tasks,
    settle,
    totals,
)
from benchmarks.launch.worker import Settings
from benchmarks.states import OUTCOMES, RunKey
from benchmarks.store import Store, StoreWriteError

_TICK_SECONDS = 0.2
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class LocalPool:
    """Worker processes on this machine.

    Attributes:
        store: where the runs are.
        workers: how many runs, or groups of runs, at a time, if each needs one device; one that
            needs two has the place of two.
        threads: CPU threads of each, for every device.
        executor: `module:function` that carries out a run in a worker.
        group_executor: the same for several runs that are trained together.
        max_attempts: how often a run may kill its worker before it counts as failed.
        time_limit: seconds after which a run is asked to stop, and ends as `timeout`; a group
            has the time of all its runs.
        display: None chooses by whether standard output is a terminal.
        retry: final states (`diverged`, say) of which runs are carried out again from the start.
        grace: seconds that a run gets to stop after its time limit before its worker is killed.
        gpus: of which each worker sees as many as its runs need; empty: all see the same.
        asked_to_stop: looked at now and then, beside the signals.
    """

    store: Store
    workers: int
    threads: int
    executor: str = "benchmarks.runner:execute"
    group_executor: str = "benchmarks.together:execute"
    max_attempts: int = 3
    time_limit: float | None = None
    display: Display | None = None
    retry: Collection[str] = ()
    grace: float = 30.0
    gpus: tuple[str, ...] = ()
    asked_to_stop: Callable[[], bool] = lambda: False

    def run(self, planned: Sequence[PlannedRun]) -> Summary:
        """Bring every run to an end. What is done already is not done again.

        Ctrl-C, or SIGTERM, lets each run stop at its next batch as `interrupted`; a second one
        kills the workers. In both cases the same call continues later.

        Raises:
            StoreWriteError: the store cannot be written; the runs can be continued later.
            LaunchError: workers cannot be started.
        """
        return _Session(self, planned).run()


class _Session:
    """One call of :meth:`LocalPool.run`."""

    def __init__(self, pool: LocalPool, planned: Sequence[PlannedRun]) -> None:
        self._pool = pool
        self._planned = {run.key: run for run in planned}
        self._display = make_display() if pool.display is None else pool.display
        self._tasks: dict[RunKey, Task] = {}  # those that have not ended
        self._states: dict[RunKey, str] = {}
        self._reasons: dict[RunKey, str] = {}
        self._slots = Slots(pool.workers, pool.gpus)
        self._staff = Staff(self._slots, _settings(pool))
        self._workers = self._staff.workers
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
                "checkpoint, and runs that are trained together begin anew."
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
        return self._requests() > 0 or self._store_error is not None

    def _prepare(self) -> None:
        self._pool.store.check_writable()
        planned = list(self._planned.values())
        self._tasks, settled = open_tasks(self._pool.store, planned, self._pool.retry)
        for key, status in settled.items():
            self._states[key] = status["state"]
            if status["reason"]:
                self._reasons[key] = status["reason"]

    def _requests(self) -> int:
        """How often the user, or the machine, has asked to stop."""
        return max(self._signals.count, int(self._pool.asked_to_stop()))

    def _obey_signals(self) -> None:
        if self._requests() > self._signals_obeyed:
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

    def _running(self) -> bool:
        return any(worker.offer is not None for worker in self._workers)

    def _tasks_of(self, worker: WorkerProcess) -> list[Task]:
        if worker.offer is None:
            return []
        return [self._tasks[member.key] for member in worker.offer.members]

    def _assign(self) -> None:
        """Let begin what can, the runs that need most devices first."""
        if self._stopping or self._staff.is_full():
            return
        waiting: list[int] = []
        for devices in sorted({task.planned.devices for task in self._tasks.values()})[::-1]:
            if self._assign_needing(devices, waiting):
                waiting.append(devices)

    def _assign_needing(self, devices: int, waiting: Sequence[int]) -> bool:
        """Let runs begin that need so many devices.

        Returns:
            Whether some wait for room.
        """
        while True:
            tasks = [one for one in self._tasks.values() if one.planned.devices == devices]
            found, ended = next_free(tasks)
            self._end(ended)
            if not found:
                return False
            has_room = self._staff.has_room(devices, waiting)
            worker = self._staff.idle(devices)
            if worker is None or not has_room:
                break
            for task in found:
                task.worker = worker
            worker.give(offer(found, self._pool.time_limit), label_of(found))
        free = [task for task in tasks if task.worker is None and not task.elsewhere]
        lacking = len({task.planned.group or task.planned.key for task in free})
        lacking -= self._staff.starting(devices)
        while lacking > 0 and self._staff.has_room(devices, waiting):
            self._staff.hire(devices)
            lacking -= 1
        return lacking > 0

    def _listen(self) -> None:
        if not self._workers:
            time.sleep(_TICK_SECONDS)
            return
        wait([worker.connection for worker in self._workers], _TICK_SECONDS)
        for worker in list(self._workers):
            self._hear(worker)

    def _hear(self, worker: WorkerProcess) -> None:
        for kind, *rest in worker.messages():
            if kind == "ready":
                worker.ready = True
                self._failed_starts = 0
            elif kind == "unusable":
                raise LaunchError(f"the executor {self._pool.executor} cannot be used:\n{rest[0]}")
            elif kind == "store":
                self._store_error = rest[0]
                self._stop_workers()
            elif kind == "started":
                self._note_start(worker, *rest)
            elif kind == "progress":
                worker.progress = rest[0]
                self._display.progress(worker.label, rest[0])
            elif kind == "ended":
                self._take(worker, rest[0])

    def _note_start(self, worker: WorkerProcess, attempt: int, claimed: Sequence[RunKey]) -> None:
        tasks = self._tasks_of(worker)
        worker.started = time.monotonic()
        worker.label = label_of(tasks, len(claimed))
        for task in tasks:
            task.elsewhere = task.planned.key not in claimed
        self._display.started(worker.label, attempt)

    def _release(self, worker: WorkerProcess) -> list[Task]:
        tasks = self._tasks_of(worker)
        worker.take_back()
        for task in tasks:
            task.worker, task.elsewhere = None, False
        return tasks

    def _take(self, worker: WorkerProcess, outcomes: Sequence[Outcome]) -> None:
        self._release(worker)
        ended, again = [], []
        for outcome in outcomes:
            task = self._tasks[outcome.key]
            if outcome.state is None:
                task.leave_to_others()
            elif outcome.state == "interrupted" and outcome.executed and not self._stopping:
                again.append(task)
            else:
                ended.append((task, outcome))
        self._end(ended, worker.label)
        # What went wrong may have damaged the process (a CUDA context never recovers).
        wrong = any(one.executed and one.state in ("failed", "oom") for one in outcomes)
        if again or wrong:
            self._staff.dismiss(worker)
        if again:  # somebody has told this worker alone to stop; it takes no more runs
            self._offer_again(again, worker.label, "the worker was told to stop")

    def _bury_dead(self) -> None:
        for worker in list(self._workers):
            if not worker.has_ended():
                continue
            self._hear(worker)  # its last messages; they may dismiss it
            if worker not in self._workers:
                continue
            obituary = worker.obituary()
            if worker.offer is None and not worker.ready and not self._stopping:
                self._failed_starts += 1
                if self._failed_starts >= self._pool.max_attempts:
                    raise LaunchError(
                        f"workers die while they start ({obituary}):\n{worker.last_words()}"
                    )
            if worker.offer is not None:
                self._bury(worker, obituary)
            self._staff.dismiss(worker)

    def _bury(self, worker: WorkerProcess, obituary: str) -> None:
        """A worker has died at work."""
        begun = worker.started is not None
        seconds = time.monotonic() - worker.started if worker.started is not None else 0.0
        tasks = self._release(worker)
        if self._store_error is not None:
            return  # it has tried to say so; the store takes no more
        if worker.killed_late:
            assert self._pool.time_limit is not None
            reason = (
                f"did not stop within {duration(self._pool.grace)} after its time limit of "
                f"{duration(self._pool.time_limit * len(tasks))} and was killed"
            )
            self._settle(tasks, worker.label, "timeout", reason, seconds)
        elif self._stopping and begun:
            self._settle(tasks, worker.label, "interrupted", "the worker was killed", seconds)
        elif not self._stopping:
            self._offer_again(tasks, worker.label, f"the worker died ({obituary})")

    def _offer_again(self, tasks: Sequence[Task], label: str, what: str) -> None:
        for task in tasks:
            task.deaths += 1
        spent = [task for task in tasks if task.deaths >= self._pool.max_attempts]
        if spent:
            reason = f"{spent[0].deaths} attempts, at last: {what}"
            if len(tasks) > 1:
                reason += "; launcher.together=false trains each run by itself"
            self._settle(spent, label, "failed", reason, 0.0)
        if len(spent) < len(tasks):
            self._display.ended(label, "again", f"{what}; it is tried again", 0.0)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.started is None or worker.offer is None or worker.offer.time_limit is None:
                continue
            if now - worker.started > worker.offer.time_limit + self._pool.grace:
                worker.killed_late = True
                worker.kill()

    # Ends

    def _settle(
        self, tasks: Sequence[Task], label: str, state: str, reason: str, seconds: float
    ) -> None:
        """Give runs of a dead worker their state, but those that have one or that others hold."""
        ended = []
        for task in tasks:
            outcome = settle(task, state, reason, seconds / len(tasks))
            if outcome is None:
                task.leave_to_others()
            else:
                ended.append((task, outcome))
        self._end(ended, label)

    def _end(self, ended: Sequence[tuple[Task, Outcome]], label: str | None = None) -> None:
        """Count runs that have ended.

        Args:
            ended: the runs.
            label: under which the display knows those that a worker of this pool carried out.
        """
        for task, outcome in ended:
            planned, key = task.planned, task.planned.key
            assert outcome.state is not None
            del self._tasks[key]
            self._states[key] = outcome.state
            if outcome.reason:
                self._reasons[key] = outcome.reason
            if outcome.executed:
                self._executed += 1
                if outcome.state == "done":
                    self._estimator.record(planned.kind, planned.estimate, outcome.seconds)
        if ended:
            self._display.totals(self._totals())
        for part in by_group(ended):
            executed = part[0][1].executed
            name = label if executed and label else label_of([task for task, _ in part])
            seconds = sum(outcome.seconds for _, outcome in part)
            self._display.ended(name, *in_words(part), seconds)

    def _totals(self) -> Totals:
        needed = [self._slots.needed(task.planned.devices) for task in self._tasks.values()]
        at_a_time = self._pool.workers * len(needed) / max(1, sum(needed))
        return totals(self._tasks, self._workers, self._states.values(), self._estimator, at_a_time)


def _settings(pool: LocalPool) -> Settings:
    return Settings(
        root=pool.store.root.absolute(),
        stale_seconds=pool.store.stale_seconds,
        executor=pool.executor,
        group_executor=pool.group_executor,
        threads=pool.threads,
        arguments=tuple(sys.argv),
    )
