"""Pieces that several tables of grid studies share."""

from __future__ import annotations

from collections.abc import Sequence

from reports import words
from reports.grid.rates import Rate, RateDifference
from reports.grid.studies import Study, called
from reports.stats import Interval
from reports.table import Item, Table, Value

DECIMALS = 1
"""Of percentages."""


def study_table(
    study: Study,
    name: str,
    title: str,
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[Item]],
    notes: Sequence[str],
    records: Sequence[dict[str, Value]],
    *,
    folded: bool = False,
) -> Table:
    """A table named after its study and entitled with what the study shares."""
    return Table(
        f"{study.slug}_{name}",
        title,
        f"{study.key.title()} ({study.key.details()})",
        caption,
        tuple(header),
        tuple(map(tuple, rows)),
        tuple(notes),
        tuple(records),
        folded,
    )


def grid_words(study: Study) -> str:
    """`6 learning rates × 5 weight decays × 5 data seeds × 5 seeds`."""
    columns, lines = study.spec.axes
    parts = [
        words.count(len(study.columns), called(columns)),
        words.count(len(study.lines), called(lines)),
        *(
            words.count(len({values[index] for values in study.data}), called(key))
            for index, key in enumerate(study.spec.replicates)
        ),
        words.count(len(study.seeds), "seed"),
    ]
    return " × ".join(parts)


def rate_text(rate: Rate) -> str:
    """`62.0 [42.0, 80.0]`."""
    return with_interval(words.number(rate.percent, DECIMALS), rate.interval)


def with_interval(text: str, interval: Interval | None) -> str:
    """A number with its interval, if it has one."""
    return text if interval is None else f"{text} {words.interval(interval, DECIMALS)}"


def difference_text(difference: RateDifference) -> str:
    """`+34.1 [20.5, 47.0]`, in points."""
    return with_interval(words.signed(difference.points, DECIMALS), difference.interval)
