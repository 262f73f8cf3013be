"""Numbers quoted from papers beside ours, and whether ours could have produced them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reports import stats, words
from reports.analysis import CellStats, GroupStats
from reports.groups import Group
from reports.parts import EMPTY, sample_item, titled
from reports.table import Item, Table, Value

FOLDER = Path(__file__).parent / "published"

COMPARABLE_PROTOCOLS: Mapping[str, frozenset[str]] = {"timeseries": frozenset({"tslib"})}
"""By domain, our protocols that select and evaluate as the papers did. Others get no verdict."""
PAPERS: Mapping[str, str] = {"quest_2026": "QUEST paper"}
"""How a file of `published/` is called in tables."""
COMPARABLE_KIND = "real"
COMPARABLE_BUDGET = "full"


@dataclass(frozen=True)
class Published:
    """One number of a paper.

    Attributes:
        source: paper and table.
        attention: variant.
        metric: `split/name` as our results call it.
        text: the number as printed, or `training crashed`.
        value: as a number, None for a crash.
        runs: runs it is a mean of, None if the paper does not say.
        remark: protocol and caveats.
    """

    source: str
    attention: str
    metric: str
    text: str
    value: float | None
    runs: int | None
    remark: str


@dataclass(frozen=True)
class Comparison:
    """A published number beside ours.

    Attributes:
        published: theirs.
        cell: ours.
        ours: sample of the same metric, None without a finished run.
        difference: ours minus theirs, None where either is missing.
        comparable: whether protocol, data and budget match.
        interval: where the mean of as many further runs of ours would lie, None without spread.
        verdict: in words.
    """

    published: Published
    cell: CellStats
    ours: stats.Sample | None
    difference: float | None
    comparable: bool
    interval: stats.Interval | None
    verdict: str


def compare(table: GroupStats) -> list[Comparison]:
    """Published numbers for the data sets, model and variants of a table, column by column."""
    group = table.group
    reason = mismatch(group)
    found = []
    for column in group.columns:
        known = load().get((group.key.domain, column.dataset, group.key.model), ())
        for variant in group.variants:
            cell = table.cells[(variant, column.label)]
            for published in known:
                if published.attention != variant:
                    continue
                values = list(cell.cell.values(published.metric).values())
                ours = stats.describe(values)
                difference = None
                if ours is not None and published.value is not None:
                    difference = ours.mean - published.value
                verdict = f"{reason}, not comparable" if reason else _verdict(published, values)
                found.append(Comparison(published, cell, ours, difference, not reason, verdict))
    return found


def mismatch(group: Group) -> str:
    """Why a table must not be held against the papers' numbers, empty if it may."""
    key = group.key
    protocols = COMPARABLE_PROTOCOLS.get(key.domain)
    if protocols is None:
        return "protocol of the paper not matched with one of ours"
    if key.protocol not in protocols:
        return "different protocol"
    if key.kind != COMPARABLE_KIND:
        return f"different data ({key.kind})"
    if key.budget != COMPARABLE_BUDGET:
        return f"different budget ({key.budget})"
    return "different settings" if key.setting else ""


def _verdict(published: Published, values: Sequence[float]) -> str:
    if published.value is None:
        return f"published: {published.text}"
    if not values:
        return "no result of ours"
    runs = published.runs or 1
    interval = stats.prediction_interval(values, runs)
    if interval is None:
        spread = "one seed" if len(values) == 1 else f"{len(values)} seeds without spread"
        return f"no verdict: {spread} of ours give no interval"
    decimals = max(2, _decimals(published.text))
    place = "inside" if interval.covers(published.value) else "outside"
    what = "one run" if runs == 1 else f"a mean of {runs} runs"
    said = "" if published.runs else ", number of runs not published"
    return (
        f"{place} our 95 % prediction interval for {what} "
        f"{words.interval(interval, decimals)}{said}"
    )


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


@cache
def load() -> Mapping[tuple[str, str, str], tuple[Published, ...]]:
    """All published numbers by (domain, dataset, model); equal ones of several tables once."""
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for record in csv.DictReader(file):
                where = f"{PAPERS[path.stem]}, {record['table']}"
                identity = tuple(record[name] for name in _IDENTITY)
                known = merged.setdefault(identity, {**record, "where": where})
                if known["where"] != where:
                    known["where"] += f" and {record['table'].removeprefix('Table ')}"
    result: dict[tuple[str, str, str], tuple[Published, ...]] = {}
    for record in merged.values():
        key = (record["domain"], record["dataset"], record["model"])
        result[key] = (*result.get(key, ()), _published(record))
    return result


_IDENTITY = (
    "domain", "dataset", "model", "recipe", "attention", "metric", "split", "value", "sd", "n",
    "outcome", "note",
)  # fmt: skip


def _published(record: Mapping[str, str]) -> Published:
    crashed = record["outcome"] == "diverged"
    text = "training crashed" if crashed else record["value"]
    remark = "; ".join(part for part in (record["recipe"], record["note"]) if part)
    return Published(
        source=record["where"],
        attention=record["attention"],
        metric=f"{record['split'] or 'test'}/{record['metric']}",
        text=f"{text} ± {record['sd']}" if record["sd"] else text,
        value=None if crashed else float(record["value"]),
        runs=int(record["n"]) if record["n"] else None,
        remark=remark,
    )


def published_numbers(table: GroupStats) -> Table | None:
    """Ours beside the papers', with source, protocol and verdict."""
    comparisons = compare(table)
    if not comparisons:
        return None
    reached = any(found.comparable for found in comparisons)
    names = {found.published.metric for found in comparisons}
    header = ["data set", "attention", "ours", "published"]
    header += ["ours - published"] if reached else []
    header += ["source", "remarks", "verdict"]
    rows: list[list[Item]] = []
    records: list[dict[str, Value]] = []
    for found in comparisons:
        theirs, ours = found.published, found.ours
        tone = "" if found.comparable else "muted"
        row = [
            Item(found.cell.column.label),
            Item(
                found.cell.variant if len(names) == 1 else f"{found.cell.variant}, {theirs.metric}"
            ),
            sample_item(ours, 2) if ours else Item("", ", ".join(found.cell.cell.words())),
            Item(theirs.text, sort=theirs.value),
        ]
        if reached:
            row.append(
                EMPTY
                if found.difference is None or not found.comparable
                else Item(words.signed(found.difference, 2), sort=found.difference)
            )
        rows.append(
            [*row, Item(theirs.source), Item(theirs.remark), Item(found.verdict, tone=tone)]
        )
        records.append(
            {
                "dataset": found.cell.cell.dataset,
                "attention": found.cell.variant,
                "metric": theirs.metric,
                "n": ours.n if ours else 0,
                "mean": ours.mean if ours else None,
                "sd": ours.sd if ours else None,
                "published": theirs.value,
                "published_runs": theirs.runs,
                "source": theirs.source,
                "remark": theirs.remark,
                "comparable": found.comparable,
                "verdict": found.verdict,
            }
        )
    notes = (
        "Prediction interval: where the mean of as many further runs of ours would lie; a single "
        "run is assumed where the paper states no number.",
        "Published numbers are never averaged with ours.",
    )
    what = f"{names.pop()}. " if len(names) == 1 else ""
    caption = (
        f"{what}Numbers quoted from papers beside ours; a verdict only where the protocol matches."
    )
    reason = mismatch(table.group)
    title = f"Published numbers ({reason})" if reason else "Published numbers"
    return titled(
        table, "published", title, caption, header, rows, notes, records, folded=not reached
    )
