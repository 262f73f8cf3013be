"""`status`: what a store holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.claims import looks_dead
from benchmarks.launch import slurm_queue
from benchmarks.launch.slurm_queue import Queue
from benchmarks.states import RUNNABLE, RunKey
from benchmarks.store import Run, Store, StoreError
from domains import registry


def print_status(store: Store) -> None:
    """Print states by cell, and the reasons of what did not end well.

    A grid, which has hundreds of cells, is one line; so is each state in it.
    """
    console = Console(soft_wrap=True, highlight=False)
    grids = {name for name in registry.names() if registry.spec(name).grid is not None}
    states: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    cells: dict[tuple[str, ...], set[str]] = defaultdict(set)
    reasons: dict[tuple[tuple[str, ...], str, str], list[str]] = defaultdict(list)
    unsettled: list[tuple[Run, str]] = []
    for run in store.runs():
        key = run.key
        try:
            run.result()
            status = run.status()
        except StoreError as error:
            status = {"state": "unreadable", "reason": str(error)}
        line = _line_of(key, key.domain in grids)
        states[line][status["state"]] += 1
        cells[line].add(key.hash)
        if status["state"] not in ("done", "planned", "running"):
            where = f"{key.dataset} · {key.attention}"
            if key.domain not in grids:
                where += f" · seed {key.seed}"
            reasons[line, where, status["state"]].append(status.get("reason") or "")
        if status["state"] in RUNNABLE:
            unsettled.append((run, status["state"]))
    if not states:
        console.print(f"{store.root} holds no runs yet; `make bench` fills it.")
        return
    table = Table("domain", "data set", "attention", "cell", "runs")
    for line, counts in sorted(states.items()):
        cell = next(iter(cells[line])) if len(cells[line]) == 1 else f"{len(cells[line])} cells"
        numbers = ", ".join(f"{state} {n}" for state, n in sorted(counts.items()))
        table.add_row(*line[:3], cell, numbers)
    console.print(table)
    for (_, where, state), texts in reasons.items():
        count = f"{len(texts)} " if len(texts) > 1 else ""
        console.print(f"{where}: {count}{state}. {texts[0]}", markup=False)
    totals = sum(states.values(), Counter[str]())
    console.print(", ".join(f"{n} {state}" for state, n in totals.most_common()))
    if unsettled:
        _print_work(store, unsettled, console)


def _print_work(store: Store, unsettled: Sequence[tuple[Run, str]], console: Console) -> None:
    """Say who works on what has not ended: runners, a cluster's queue, or nobody any more."""
    queue, submissions = None, slurm_queue.submissions(store.root)
    if submissions:
        try:
            queue = slurm_queue.look(store.root)
        except slurm_queue.QueueError as error:
            console.print(f"The queue cannot be asked ({error}).", markup=False)
    waiting: Counter[str] = Counter()
    running, lost, submitted = 0, [], Queue(submissions, {})
    for run, state in unsettled:
        holder = run.holder()
        alive = holder is not None and not looks_dead(run.path / "claim", holder)
        job = None if queue is None else queue.job(run.key)
        if alive:
            running += 1
        elif job is not None:
            waiting[job.reason if job.state == "PENDING" else job.state] += 1
        elif state == "running" or (queue is not None and _was_lost(queue, run.key, state)):
            lost.append(run.key)
        elif queue is None and submitted.submitted(run.key) and state == "planned":
            waiting["submitted"] += 1
    if running:
        console.print(f"{running} under way")
    if waiting:
        reasons = ", ".join(f"{count} {reason}" for reason, count in waiting.most_common())
        console.print(f"{waiting.total()} wait in the queue ({reasons})", markup=False)
    if lost:
        console.print(
            f"{len(lost)} lost: whoever worked on them shows no sign of life, and no job is queued "
            f"for them; the command that began them continues them. The first: {lost[0]}",
            markup=False,
        )


def _was_lost(queue: Queue, key: RunKey, state: str) -> bool:
    """Whether a run that nobody works on should have a job in the queue."""
    return state in ("planned", "interrupted") and queue.submitted(key) and not queue.cancelled(key)


def _line_of(key: RunKey, is_grid: bool) -> tuple[str, ...]:
    """Equal for runs that share a line of the table."""
    line = (key.domain, key.dataset, key.attention)
    return line if is_grid else (*line, key.hash)
