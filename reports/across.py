"""The table over tasks, and the findings in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports import ranks, words
from reports.analysis import CellStats, GroupStats, Verdict, View
from reports.parts import EMPTY, reference
from reports.rows import BASELINE
from reports.stats import Difference
from reports.table import Item, Table, Value

FEW_COMPARISONS = 15
"""Up to so many comparisons a table's findings are listed one by one."""


def across_table(view: View) -> Table | None:
    """Summary over all tasks of a view, None if no variant is complete on all."""
    if not view.rows:
        return None
    header = (
        "attention", f"change to {BASELINE}, % (IQM)", "probability of improvement",
        "better / worse / open", "average rank",
    )  # fmt: skip
    rows: list[tuple[Item, ...]] = []
    records: list[dict[str, Value]] = []
    tasks = len(view.tasks())
    for row in view.rows:
        still_open = tasks - row.better - row.worse
        rows.append(
            (
                Item(row.variant),
                EMPTY if row.change is None else _aggregate(row.change, signed=True),
                _aggregate(row.improvement, signed=False),
                Item(f"{row.better} / {row.worse} / {still_open}", sort=row.better - row.worse),
                EMPTY
                if row.average_rank is None
                else Item(words.number(row.average_rank, 2), sort=row.average_rank),
            )
        )
        records.append(
            {
                "attention": row.variant,
                "tasks": tasks,
                **_aggregate_record("change_percent", row.change),
                **_aggregate_record("improvement", row.improvement),
                "better": row.better,
                "worse": row.worse,
                "average_rank": row.average_rank,
            }
        )
    notes = [
        "Better, worse, open: verdicts of the single comparisons.",
        "IQM: interquartile mean over tasks and seeds. Probability of improvement: chance that a "
        "run of the variant beats one of the baseline, averaged over tasks; 0.5 is no difference.",
        f"Intervals: 95 % percentile bootstrap, {ranks.BOOTSTRAP_DRAWS:,} draws, seeds resampled "
        "within tasks. They speak about these tasks, not about others, and are too narrow with "
        "fewer than about five seeds.",
    ]
    if any(row.change is None for row in view.rows):
        notes.append(f"No relative change: {BASELINE} has a mean of 0 on a task.")
    if view.omitted:
        notes.append(
            f"Left out, since not every seed of every task is done: {words.listing(view.omitted)}."
        )
    if view.note:
        notes.append(view.note)
    names = ", ".join(column.label for _, column in view.tasks())
    caption = f"{words.count(tasks, 'task').capitalize()}: {names}."
    title = "All tasks together"
    name = f"{view.slug}_across"
    return Table(
        name, title, view.title, caption, header, tuple(rows), tuple(notes), tuple(records)
    )


def _aggregate_record(name: str, aggregate: ranks.Aggregate | None) -> dict[str, Value]:
    interval = aggregate.interval if aggregate else None
    return {
        name: aggregate.value if aggregate else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def _aggregate(aggregate: ranks.Aggregate, *, signed: bool) -> Item:
    form = words.signed if signed else words.number
    text = form(aggregate.value, 2)
    if aggregate.interval is not None:
        text += f" {words.interval(aggregate.interval, 2)}"
    return Item(text, sort=aggregate.value)


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary.

    Attributes:
        text: the sentence without its verdict.
        verdict: of the comparison, or how many had which.
        tone: class of meaning.
        aside: what the difference is worth, or empty.
        bar: relative change with its interval, None for counts.
        ref: key of the runs.
    """

    text: str
    verdict: str
    tone: str = ""
    aside: str = ""
    bar: Difference | None = None
    ref: str = ""


VERDICTS: dict[Verdict, tuple[str, str]] = {
    "better": ("better", "better"),
    "worse": ("worse", "worse"),
    "not distinguishable": ("not distinguishable", ""),
    "not after correction": ("not distinguishable after correction", ""),
    "no interval": ("no interval", "muted"),
}


def findings(table: GroupStats) -> list[Finding]:
    """What the table says about each comparison; counts where there are many."""
    cells = table.comparisons()
    if len(cells) <= FEW_COMPARISONS:
        return [_finding(cell) for cell in cells]
    counted = []
    for variant in table.group.variants:
        own = [cell for cell in cells if cell.variant == variant]
        if own:
            counted.append(_counts(variant, own))
    return counted


def _finding(cell: CellStats) -> Finding:
    difference, relative = cell.difference, cell.relative
    assert difference is not None
    unit = words.unit_word(cell.column.info.unit)
    better = {True: "", False: " (lower is better)", None: ""}[cell.column.info.higher_is_better]
    parts = [words.difference(difference, cell.decimals), unit]
    text = (
        f"{cell.variant} {words.MINUS} {BASELINE} on {cell.column.label}: "
        f"{' '.join(part for part in parts if part)}, n = {difference.n}{better}"
    )
    verdict, tone = VERDICTS[cell.verdict]
    lines = (cell.in_test_samples(), words.p_phrase(difference.p, cell.adjusted))
    aside = "; ".join(line for line in lines if line)
    return Finding(text, verdict, tone, aside, relative, reference(cell))


def _counts(variant: str, cells: Sequence[CellStats]) -> Finding:
    verdicts = [cell.verdict for cell in cells]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    rest = len(cells) - better - worse
    text = f"{variant} against {BASELINE} on {words.count(len(cells), 'data set')}"
    verdict = f"{better} better, {worse} worse, {rest} open"
    tone = "better" if better > worse == 0 else "worse" if worse > better == 0 else ""
    return Finding(text, verdict, tone)
