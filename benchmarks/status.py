"""`status`: what a store holds."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

from benchmarks.store import Store, StoreError


def print_status(store: Store) -> None:
    """Print states by cell, and the reasons of what did not end well."""
    console = Console(soft_wrap=True, highlight=False)
    cells: dict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
    reasons: list[tuple[str, str, str]] = []
    for run in store.runs():
        key = run.key
        try:
            run.result()
            status = run.status()
        except StoreError as error:
            status = {"state": "unreadable", "reason": str(error)}
        cells[(key.domain, key.dataset, key.attention, key.hash)][status["state"]] += 1
        if status["state"] not in ("done", "planned", "running"):
            where = f"{key.dataset} · {key.attention} · seed {key.seed}"
            reasons.append((where, status["state"], status.get("reason") or ""))
    if not cells:
        console.print(f"{store.root} holds no runs yet; `make bench` fills it.")
        return
    table = Table("domain", "data set", "attention", "cell", "runs")
    for cell, states in sorted(cells.items()):
        table.add_row(*cell, ", ".join(f"{state} {n}" for state, n in sorted(states.items())))
    console.print(table)
    for where, state, reason in reasons:
        console.print(f"{where}: {state}. {reason}", markup=False)
    totals = sum(cells.values(), Counter[str]())
    console.print(", ".join(f"{n} {state}" for state, n in totals.most_common()))
