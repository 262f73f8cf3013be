"""`status`: what a store holds."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

from benchmarks.states import RunKey
from benchmarks.store import Store, StoreError
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


def _line_of(key: RunKey, is_grid: bool) -> tuple[str, ...]:
    """Equal for runs that share a line of the table."""
    line = (key.domain, key.dataset, key.attention)
    return line if is_grid else (*line, key.hash)
