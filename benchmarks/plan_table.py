"""`plan`: what a request stands for, what is done, and what the rest will take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.estimate import Estimates, in_words
from benchmarks.plan import Planned, pending, state_of
from benchmarks.store import Store


def print_plan(runs: Sequence[Planned], store: Store, retry: Sequence[str]) -> None:
    """Print a line a cell: id, seeds, states, estimated time of what is missing."""
    console = Console(soft_wrap=True, highlight=False)
    estimates = Estimates(store)
    cells: dict[str, list[Planned]] = defaultdict(list)
    for planned in runs:
        cells[str(planned.key).rsplit("/", 1)[0]].append(planned)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("data set", "attention", "protocol"):
        table.add_column(name, no_wrap=True)  # a narrow terminal must not cut what tells apart
    for name in ("seeds", "state", "missing takes", "cell"):
        table.add_column(name)
    total: float | None = 0.0
    missing_count = 0
    for members in cells.values():
        states = Counter(state_of(store.run(planned.key)) for planned in members)
        missing = pending(members, store, retry)
        each = estimates.seconds(
            members[0].key, members[0].config.recipe.name, members[0].config.budget.name
        )
        seconds = 0.0 if not missing else None if each is None else each * len(missing)
        missing_count += len(missing)
        total = None if total is None or seconds is None else total + seconds
        table.add_row(
            members[0].key.dataset,
            members[0].key.attention,
            members[0].config.protocol,
            ",".join(str(planned.key.seed) for planned in members),
            ", ".join(f"{state} {count}" for state, count in sorted(states.items())),
            in_words(seconds) if missing else "-",
            members[0].key.hash,
        )
    console.print(table)
    console.print(
        f"{len(runs)} runs in {len(cells)} cells, {missing_count} to do, {_time_in_words(total)}"
    )


def _time_in_words(total: float | None) -> str:
    if total is None:
        return "how long they take is known once one like them was run"
    return f"one worker needs {in_words(total)} for them"
