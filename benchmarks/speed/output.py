"""The table of `speed`: on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.speed.measure import Row

SCHEMA = 1
COLUMNS = ("case", "ours", "reference", "time", "quartiles", "memory", "target", "reached")
LEGEND = (
    "time and memory: ours / reference (ours), median and quartiles of pairs measured in turns; "
    "target: time / memory, or seconds"
)


def by_group(rows: Iterable[Row]) -> list[tuple[str, str, list[Row]]]:
    """Rows under their headings, with what they are compared with."""
    return [
        (group, against, list(members))
        for (group, against), members in groupby(rows, key=lambda row: (row.group, row.against))
    ]


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one line, in the order of COLUMNS."""
    ratio, memory = row.ratio, row.memory_ratio
    if row.ratio is None:
        target = "" if row.time_target is None else f"≤ {row.time_target:g} s"
    else:
        wanted = ["–" if t is None else f"≤ {t:.2f}" for t in (row.time_target, row.memory_target)]
        target = "" if row.reached is None else " / ".join(wanted)
    rate = f" ({row.tokens / row.seconds.median:,.0f} tokens/s)" if row.tokens else ""
    return (
        row.name,
        duration(row.seconds.median) + rate,
        "" if row.baseline_seconds is None else duration(row.baseline_seconds.median),
        "" if ratio is None else f"{ratio.median:.3f}",
        "" if ratio is None else f"{ratio.low:.3f}–{ratio.high:.3f}",
        "" if memory is None or row.memory is None else f"{memory:.3f} ({size(row.memory)})",
        target,
        {True: "yes", False: "no", None: ""}[row.reached],
    )


def duration(seconds: float) -> str:
    """A time with its unit, three digits."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def size(count: int) -> str:
    """Bytes with their unit, three digits."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def line(row: Row) -> str:
    """A row in short, for the time until its table is printed."""
    time = duration(row.seconds.median)
    compared = "" if row.ratio is None else f", {row.ratio.median:.3f} of {row.against}"
    return f"{row.group}: {row.name}: {time}{compared} (n = {row.samples})"


def title(group: str, against: str) -> str:
    """Heading of a table."""
    return f"{group}, against {against}" if against else group


def show(rows: Iterable[Row], console: Console) -> None:
    """Print one table a group."""
    for group, against, members in by_group(rows):
        table = Table(title=title(group, against), title_justify="left", title_style="bold")
        table.add_column(COLUMNS[0])
        for number, column in enumerate(COLUMNS[1:], start=1):
            table.add_column(column, no_wrap=True, justify="right" if number < 6 else "left")
        for row in members:
            style = {True: "green", False: "yellow", None: None}[row.reached]
            table.add_row(*cells(row), style=style)
        console.print(table)
    console.print(LEGEND)


def markdown(rows: Iterable[Row], machine: Mapping[str, Any]) -> str:
    """The same tables for a README, after a line that says where they were measured."""
    lines = [
        "# Speed and memory",
        "",
        ", ".join(f"{key} {value}" for key, value in machine.items()),
    ]
    lines += ["", f"{LEGEND}."]
    for group, against, members in by_group(rows):
        lines += ["", f"## {title(group, against)}", ""]
        lines += [
            "| " + " | ".join(COLUMNS) + " |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
        ]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in members]
    return "\n".join(lines) + "\n"


def write(
    rows: list[Row], machine: Mapping[str, Any], provenance: Mapping[str, Any], stem: Path
) -> tuple[Path, Path]:
    """Write `stem.json` with every number and `stem.md` with the tables; return both paths.

    Raises:
        OSError: the folder cannot be written.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "schema": SCHEMA,
        "provenance": dict(provenance),
        "rows": [
            asdict(row) | {"memory_ratio": row.memory_ratio, "reached": row.reached} for row in rows
        ],
    }
    as_json, as_markdown = stem.with_suffix(".json"), stem.with_suffix(".md")
    as_json.write_text(json.dumps(content, indent=1) + "\n")
    as_markdown.write_text(markdown(rows, machine))
    return as_json, as_markdown
