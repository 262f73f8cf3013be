"""The short version of a report, for the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reports import words
from reports.across import VERDICTS
from reports.analysis import CellStats, GroupStats, evaluate
from reports.costs import Cost
from reports.frame import Filters, load
from reports.grid.evaluation import StudyStats, evaluate_study
from reports.grid.parts import difference_text, grid_words, rate_text
from reports.grid.studies import arrange_studies
from reports.groups import KIND_NOTES, Column, arrange
from reports.rows import BASELINE, ReportError

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"better": "green", "worse": "red", "muted": "dim", "": ""}


def print_summary(store_root: Path, console: Console, filters: Filters | None = None) -> None:
    """One compact table a data set. Never raises for what the store holds.

    Args:
        store_root: RESULTS_DIR.
        console: to print on.
        filters: allowed values by name, as for `reports.frame.load`.
    """
    try:
        frame = load(Path(store_root), filters)
        tables = [evaluate(group) for group in arrange(frame.rows)]
        studies = [evaluate_study(study) for study in arrange_studies(frame.rows)]
    except ReportError as error:
        console.print(f"no summary: {error}", style="red", markup=False)
        return
    for table in tables:
        if all(row.state == "planned" for row in table.group.rows):
            continue  # nothing has begun; grids that have no result yet would fill the screen
        for column in table.group.columns:
            _print_column(console, table, column)
    for study in studies:
        _print_study(console, study)
    for problem in frame.problems:
        console.print(f"left out: {problem.path}: {problem.message}", style="red", markup=False)


def _print_column(console: Console, table: GroupStats, column: Column) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    label = words.metric_label(column.primary, column.info.unit, column.info.higher_is_better)
    shown = Table(
        title=Text(f"{column.label}, {table.group.key.protocol}: {label or 'no result'}"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("attention", no_wrap=True)
    shown.add_column("mean ± sd (n)", justify="right")
    shown.add_column(f"difference to {BASELINE}", justify="right")
    shown.add_column("verdict")
    shown.add_column("time", justify="right")
    base = Cost.of(column.cells[BASELINE]) if BASELINE in column.cells else None
    for cell in table.column(column):
        verdict, tone = VERDICTS.get(cell.verdict, ("", ""))
        shown.add_row(
            Text(cell.variant),
            Text(_value(cell), style="bold" if cell.bold else ""),
            Text(words.difference(cell.difference, cell.decimals) if cell.difference else ""),
            Text(verdict, style=_STYLES[tone]),
            Text(_time(cell, base)),
        )
    console.print(shown)
    for note in [column.info.note, KIND_NOTES.get(table.group.key.kind), table.group.key.details()]:
        if note:
            console.print(f"  {note}", style="dim", markup=False, highlight=False)


def _print_study(console: Console, stats: StudyStats) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    study = stats.study
    shown = Table(
        title=Text(f"{study.key.title()}: success, %, {grid_words(study)}"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("attention", no_wrap=True)
    shown.add_column("success", justify="right")
    shown.add_column(f"difference to {BASELINE}", justify="right")
    shown.add_column("verdict")
    shown.add_column("runs", justify="right")
    for own in stats.variants:
        verdict, tone = VERDICTS.get(own.verdict, ("", ""))
        shown.add_row(
            Text(own.variant),
            Text(rate_text(own.rate) if own.rate else "–"),
            Text(difference_text(own.difference) if own.difference else ""),
            Text(verdict, style=_STYLES[tone]),
            Text(", ".join([f"{own.rate.n:,}" if own.rate else "0", *own.words])),
        )
    console.print(shown)
    console.print(f"  {study.key.details()}", style="dim", markup=False, highlight=False)


def _value(cell: CellStats) -> str:
    parts = [words.sample(cell.sample, cell.decimals)] if cell.sample else []
    return ", ".join([*parts, *cell.cell.words()])


def _time(cell: CellStats, base: Cost | None) -> str:
    own = Cost.of(cell.cell)
    if base is None or not base.seconds_per_step or not own.seconds_per_step:
        return ""
    return f"{words.ratio(own.seconds_per_step / base.seconds_per_step)}x"
