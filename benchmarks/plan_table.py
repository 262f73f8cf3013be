"""`plan`: what a request stands for, what is done, and what the rest will take."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import config as configuration
from benchmarks import grouping
from benchmarks.estimate import Estimates, in_words
from benchmarks.plan import Planned, state_of, wanted
from benchmarks.store import Store
from domains.registry import spec as domain_spec


def print_plan(runs: Sequence[Planned], store: Store, retry: Sequence[str]) -> None:
    """Print a line a cell: id, seeds, states, estimated time of what is missing.

    Where a grid is evaluated as a whole, it is a single line.
    """
    console = Console(soft_wrap=True, highlight=False)
    estimates = Estimates(store)
    states = {planned.key: state_of(store.run(planned.key)) for planned in runs}
    todo = [planned for planned in runs if states[planned.key] in wanted(retry)]
    missing = {planned.key for planned in todo}
    lines: dict[str, list[Planned]] = defaultdict(list)
    for planned in runs:
        lines[_line_of(planned)].append(planned)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("data set", "attention", "protocol"):
        table.add_column(name, no_wrap=True)  # a narrow terminal must not cut what tells apart
    for name in ("seeds", "state", "missing takes"):
        table.add_column(name)
    table.add_column("cell", overflow="fold")
    total: float | None = 0.0
    for members, cell in zip(lines.values(), _cell_names(list(lines.values())), strict=True):
        lacking = [planned for planned in members if planned.key in missing]
        seconds = _seconds(lacking, estimates)
        total = None if total is None or seconds is None else total + seconds
        counts = Counter(states[planned.key] for planned in members)
        table.add_row(
            members[0].key.dataset,
            members[0].key.attention,
            members[0].config.protocol,
            ",".join(str(seed) for seed in sorted({planned.key.seed for planned in members})),
            ", ".join(f"{state} {count}" for state, count in sorted(counts.items())),
            in_words(seconds) if lacking else "-",
            cell,
        )
    console.print(table)
    cells = {str(planned.key).rsplit("/", 1)[0] for planned in runs}
    console.print(
        f"{len(runs)} runs in {len(cells)} cells, {len(missing)} to do, {_time_in_words(total)}"
    )
    if together := grouping.in_words(todo):
        console.print(together)
    if todo and (launcher := todo[0].launcher).name == "slurm":
        from benchmarks.launch import slurm_jobs
        from benchmarks.launch.start import grouped

        accelerator = todo[0].config.trainer.accelerator
        console.print(slurm_jobs.in_words(grouped(todo, store), launcher, accelerator))


def _line_of(planned: Planned) -> str:
    """Equal for runs that share a line."""
    gridded = _gridded(planned)
    if not gridded:
        return str(planned.key).rsplit("/", 1)[0]
    return json.dumps(configuration.identity(planned.config, without=gridded))


def _cell_names(lines: Sequence[Sequence[Planned]]) -> Iterator[str]:
    """The hash of a line's cell; for a grid its size, and what tells it from others beside it."""
    seen: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for members in lines:
        seen[_title(members[0])].append(_settings(members[0]))
    for members in lines:
        cells = {planned.key.hash for planned in members}
        if len(cells) == 1:
            yield members[0].key.hash
            continue
        own = _settings(members[0])
        beside = seen[_title(members[0])]
        telling = [
            f"{key}={value}"
            for key, value in own.items()
            if key not in _gridded(members[0]) and any(other.get(key) != value for other in beside)
        ]
        yield ", ".join([f"{len(cells)} cells", *telling])


def _title(planned: Planned) -> tuple[str, ...]:
    return planned.key.domain, planned.key.dataset, planned.key.attention, planned.config.protocol


def _gridded(planned: Planned) -> tuple[str, ...]:
    grid = domain_spec(planned.key.domain).grid
    return () if grid is None else (*grid.axes, *grid.replicates)


def _settings(planned: Planned) -> dict[str, Any]:
    """Dotted keys of what a run computes."""

    def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, Mapping):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return dict(flat(configuration.identity(planned.config)))


def _seconds(lacking: Sequence[Planned], estimates: Estimates) -> float | None:
    """Expected time of all these runs, None if nothing is known about some of them."""
    each = [estimates.seconds(planned.key, planned.config) for planned in lacking]
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def _time_in_words(total: float | None) -> str:
    if total is None:
        return "how long they take is known once one like them was run"
    return f"one worker needs {in_words(total)} for them"
