"""What a launcher knows of the runs that have not ended, and how it speaks of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.claims import Holder
from benchmarks.files import for_each
from benchmarks.launch.display import Totals, headline
from benchmarks.launch.estimate import Estimator, InProgress, Waiting
from benchmarks.launch.perform import Member, Offer, Outcome, is_settled
from benchmarks.launch.planned import PlannedRun, labels
from benchmarks.launch.process import WorkerProcess
from benchmarks.states import FINAL, RunKey
from benchmarks.store import CorruptFileError, Run, Store

_POLL_SECONDS = 1.0


@dataclass
class Task:
    """A run that has not ended.

    Attributes:
        planned: what was asked for.
        run: its place in the store.
        label: short name for people.
        attempts: finished ones before this pool; an outcome of a later one is news.
        deaths: how many workers have died of it.
        worker: who has been offered it.
        dead_holder: whose claim is to be inherited.
        elsewhere: whether another runner holds it.
        look_again: when to look at it next (monotonic).
    """

    planned: PlannedRun
    run: Run
    label: str
    attempts: int
    deaths: int = 0
    worker: WorkerProcess | None = None
    dead_holder: Holder | None = None
    elsewhere: bool = False
    look_again: float = 0.0

    def leave_to_others(self) -> None:
        """Another runner holds it: look again after a while."""
        self.elsewhere = True
        self.look_again = time.monotonic() + _POLL_SECONDS

    def member(self) -> Member:
        """The run as it is offered to a worker."""
        return Member(
            self.planned.key,
            self.planned.config,
            attempts=self.attempts,
            presumed_dead=self.dead_holder,
        )


def prepare(
    store: Store, planned: PlannedRun, retry: Collection[str] = ()
) -> tuple[Run, dict[str, Any]]:
    """Make sure that a run is in the store, opened again if its state is one of `retry`.

    Returns:
        The run and its status.
    """
    run = store.prepare(planned.key, planned.config)
    status = run.check()
    if status["state"] in FINAL and status["state"] in retry:
        run.reopen(f"was {status['state']}; asked to be done again")
        status = run.check()
    return run, status


def open_tasks(
    store: Store, planned: Sequence[PlannedRun], retry: Collection[str] = ()
) -> tuple[dict[RunKey, Task], dict[RunKey, dict[str, Any]]]:
    """Prepare runs in the store.

    Returns:
        Those that have to be worked on, and the status of the others.
    """
    names = labels(one.key for one in planned)
    tasks, settled = {}, {}
    made = for_each(partial(prepare, store, retry=retry), planned)
    for one, (run, status) in zip(planned, made, strict=True):
        # One that is under way elsewhere may yet fail there: that counts as news.
        attempts = status["attempts"] - (status["state"] == "running")
        if one.attempts is not None:
            attempts = one.attempts
        if is_settled(status, attempts):
            settled[one.key] = status
        else:
            tasks[one.key] = Task(one, run, names[one.key], attempts)
    return tasks, settled


def settle(task: Task, state: str, reason: str, seconds: float) -> Outcome | None:
    """Give a run whose worker is dead its state, unless it has one.

    Returns:
        How it ended; None if somebody else has it.
    """
    claim = task.run.claim()
    if claim is None:
        return None
    with claim:
        status = task.run.status()
        if is_settled(status, task.attempts):
            state, reason = status["state"], status["reason"]
        else:
            task.run.set_status(state, reason, seconds=round(seconds, 3))
    return Outcome(task.planned.key, state, reason, executed=True, seconds=seconds)


def next_free(tasks: Iterable[Task]) -> tuple[list[Task], list[tuple[Task, Outcome]]]:
    """The first run that nobody works on, with those of its group.

    Returns:
        These runs, and those found on the way that others have brought to an end.
    """
    now = time.monotonic()
    free: list[Task] = []
    ended: list[tuple[Task, Outcome]] = []
    for task in tasks:
        if task.worker is not None or task.look_again > now:
            continue
        if free and free[0].planned.group is None:
            break
        if free and task.planned.group != free[0].planned.group:
            continue
        status = task.run.check()
        if is_settled(status, task.attempts):
            ended.append((task, Outcome(task.planned.key, status["state"], status["reason"])))
            continue
        holder = task.run.holder()
        if holder is not None and not task.run.is_dead(holder):
            task.leave_to_others()
            continue
        task.elsewhere, task.dead_holder = False, holder
        free.append(task)
    return free, ended


def offer(tasks: Sequence[Task], time_limit: float | None) -> Offer:
    """What a worker is given: a run, or a group, which has the time of all its runs."""
    limit = None if time_limit is None else time_limit * len(tasks)
    return Offer(tuple(task.member() for task in tasks), limit)


def label_of(tasks: Sequence[Task], count: int | None = None) -> str:
    """Name of a run, or of a group: `toy · quest · 25 runs · group 3`.

    Args:
        tasks: the runs, at least one.
        count: how many of them are meant, if not all.
    """
    count = len(tasks) if count is None else count
    first = tasks[0]
    if count == 1 and len(tasks) == 1:
        return first.label
    key, runs = first.planned.key, "1 run" if count == 1 else f"{count} runs"
    return f"{key.dataset} · {key.attention} · {runs} · group {first.planned.group}"


def by_group(ended: Iterable[tuple[Task, Outcome]]) -> Iterator[list[tuple[Task, Outcome]]]:
    """Bring together what one line can tell: runs of a group with the same executor."""
    parts: dict[object, list[tuple[Task, Outcome]]] = {}
    for task, outcome in ended:
        group = task.planned.key if task.planned.group is None else task.planned.group
        parts.setdefault((group, outcome.executed), []).append((task, outcome))
    yield from parts.values()


def in_words(ended: Sequence[tuple[Task, Outcome]]) -> tuple[str, str]:
    """The state of runs that ended together, that of most of them, and a note for people."""
    states = Counter(str(outcome.state) for _, outcome in ended)
    state = states.most_common(1)[0][0]
    notes = []
    if len(states) > 1:
        notes.append(", ".join(f"{count} {name}" for name, count in states.most_common()))
    if state == "done":
        notes.append(_headline([task.run for task, one in ended if one.state == "done"]))
    notes.append(next((one.reason for _, one in ended if one.reason), ""))
    if not ended[0][1].executed:
        notes.append("(by another runner)")
    return state, "  ".join(filter(None, notes))


def _headline(runs: Sequence[Run]) -> str:
    """Primary metric of a run, or its mean over several."""
    results = []
    for run in runs:
        with suppress(CorruptFileError):
            results.append(run.result() or {})
    if len(results) <= 1:
        return headline(results[0] if results else {})
    primary = results[0].get("primary_metric") or {}
    values = [(result.get("metrics") or {}).get(primary.get("name")) for result in results]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return ""
    mean = {primary["name"]: sum(numbers) / len(numbers)}
    return f"{headline({'primary_metric': primary, 'metrics': mean})} on average"


def totals(
    tasks: Mapping[RunKey, Task],
    workers: Sequence[WorkerProcess],
    states: Iterable[str],
    estimator: Estimator,
    capacity: float,
) -> Totals:
    """Where the whole stands.

    Args:
        tasks: runs that have not ended.
        workers: those at work among them.
        states: of the runs that have ended.
        estimator: has seen what ended before.
        capacity: how many runs at a time.
    """
    now = time.monotonic()
    ended = Counter(states)
    busy: dict[int, list[Task]] = {}
    waiting = []
    elsewhere = 0
    for task in tasks.values():
        elsewhere += task.elsewhere
        if task.worker is None or task.worker.started is None or task.elsewhere:
            waiting.append(Waiting(task.planned.kind, task.planned.estimate))
        else:
            busy.setdefault(id(task.worker), []).append(task)
    running = []
    for worker in workers:
        if (own := busy.get(id(worker))) and worker.started is not None:
            estimates = [task.planned.estimate for task in own]
            known = [seconds for seconds in estimates if seconds is not None]
            running.append(
                InProgress(
                    own[0].planned.kind,
                    sum(known) if len(known) == len(own) else None,
                    now - worker.started,
                    worker.progress.get("seconds_left"),
                    len(own),
                )
            )
    return Totals(
        total=len(tasks) + ended.total(),
        states=ended,
        running=sum(run.runs for run in running),
        elsewhere=elsewhere,
        left=estimator.left(waiting, running, capacity),
    )
