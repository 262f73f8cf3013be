"""Pieces that several tables share."""

from __future__ import annotations

from collections.abc import Sequence

from reports import stats, words
from reports.analysis import CellStats, GroupStats
from reports.groups import Column
from reports.table import Item, Table, Value

SPREAD = "± is the sample standard deviation over seeds (n - 1), the number of seeds in brackets."
EMPTY = Item("–", tone="muted")


def reference(cell: CellStats) -> str:
    """Key of a cell in the page's list of runs."""
    return f"{cell.column.label}/{cell.variant}"


def sample_item(sample: stats.Sample | None, decimals: int) -> Item:
    """`mean ± sd (n)`, or the sign for nothing."""
    if sample is None:
        return EMPTY
    return Item(words.sample(sample, decimals), sort=sample.mean)


def sample_record(
    column: Column, variant: str, metric: str, unit: str, sample: stats.Sample | None
) -> dict[str, Value]:
    """The same for machines."""
    return {
        "dataset": column.dataset,
        "attention": variant,
        "metric": metric,
        "unit": unit,
        "n": sample.n if sample else 0,
        "mean": sample.mean if sample else None,
        "sd": sample.sd if sample else None,
    }


def titled(
    table: GroupStats,
    name: str,
    title: str,
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[Item]],
    notes: Sequence[str],
    records: Sequence[dict[str, Value]] = (),
    *,
    folded: bool = False,
) -> Table:
    """A table named after its group and entitled with what the group shares."""
    group = table.group
    return Table(
        f"{group.slug}_{name}",
        title,
        f"{group.key.title()} ({group.key.details()})",
        caption,
        tuple(header),
        tuple(tuple(row) for row in rows),
        tuple(notes),
        tuple(records),
        folded,
    )
