"""Numbers quoted from papers beside ours, and whether ours could have produced them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reports import stats, words
from reports.analysis import CellStats, GroupStats
from reports.groups import Group
from reports.parts import EMPTY, sample_item, titled
from reports.table import Item, Table, Value

FOLDER = Path(__file__).parent / "published"

COMPARABLE_PROTOCOLS: Mapping[str, frozenset[str]] = {
    "graph": frozenset({"graphgps"}),
    "language": frozenset({"sliding"}),
    "segmentation": frozenset({"slide"}),
    "timeseries": frozenset({"tslib"}),
}
"""By domain, our protocols that select and evaluate as the papers did. Others get no verdict."""
PAPERS = {"quest_2026": "QUEST paper"}
"""How a file of `published/` is called in tables."""
REFERENCES = {"toy_reference": "reference run"}
"""The same for files with numbers of an own reference implementation, which no paper printed."""
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
        recipe: training, where a paper has several.
        note: caveats.
        of_paper: whether a paper printed it; else it is of a reference run.
    """

    source: str
    attention: str
    metric: str
    text: str
    value: float | None
    runs: int | None
    recipe: str
    note: str
    of_paper: bool

    @property
    def remark(self) -> str:
        """Training and caveats."""
        return "; ".join(part for part in (self.recipe, self.note) if part)


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
                interval = stats.prediction_interval(values, published.runs or 1)
                verdict = _verdict(published, len(values), interval)
                if reason:
                    interval, verdict = None, f"{reason}, not comparable"
                found.append(
                    Comparison(published, cell, ours, difference, not reason, interval, verdict)
                )
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


def _verdict(published: Published, seeds: int, interval: stats.Interval | None) -> str:
    if published.value is None:
        return f"published: {published.text}"
    if interval is None:
        known = {0: "no result of ours", 1: "no interval: one seed of ours"}
        return known.get(seeds, f"no interval: our {seeds} seeds are equal")
    return "inside" if interval.covers(published.value) else "outside"


@cache
def load() -> Mapping[tuple[str, str, str], tuple[Published, ...]]:
    """All published numbers by (domain, dataset, model); equal ones of several tables once."""
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for record in csv.DictReader(file):
                where = f"{(PAPERS | REFERENCES)[path.stem]}, {record['table']}"
                identity = (path.stem, *(record[name] for name in _IDENTITY))
                known = merged.setdefault(identity, {**record, "where": where, "file": path.stem})
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
    return Published(
        source=record["where"],
        attention=record["attention"],
        metric=f"{record['split'] or 'test'}/{record['metric']}",
        text=f"{text} ± {record['sd']}" if record["sd"] else text,
        value=None if crashed else float(record["value"]),
        runs=int(record["n"]) if record["n"] else None,
        recipe=record["recipe"],
        note=record["note"],
        of_paper=record["file"] in PAPERS,
    )


def published_numbers(table: GroupStats) -> Table | None:
    """Ours beside the papers', with source, protocol and verdict."""
    comparisons = compare(table)
    if not comparisons:
        return None
    reason = mismatch(table.group)
    names = {found.published.metric for found in comparisons}
    header = ["data set", "attention", "ours", "published", "of runs"]
    header += [] if reason else ["ours - published", "our interval"]
    header += ["verdict", "source", "remarks"]
    rows = []
    for found in comparisons:
        theirs, ours, variant = found.published, found.ours, found.cell.variant
        row = [
            Item(found.cell.column.label),
            Item(variant if len(names) == 1 else f"{variant}, {theirs.metric}"),
            sample_item(ours, 2) if ours else Item("", ", ".join(found.cell.cell.words())),
            Item(theirs.text, sort=theirs.value),
            Item(str(theirs.runs or "not said")),
        ]
        if not reason:
            change, interval = found.difference, found.interval
            row += [
                EMPTY if change is None else Item(words.signed(change, 2), sort=change),
                EMPTY if interval is None else Item(words.interval(interval, 2)),
            ]
        tone = "muted" if reason else ""
        row += [Item(found.verdict, tone=tone), Item(theirs.source), Item(theirs.remark)]
        rows.append(row)
    notes = (
        "Our interval: 95 % prediction interval for the mean of as many further runs of ours as "
        "the paper averages over, for one run where it does not say; it needs no published spread.",
        "Published numbers are never averaged with ours.",
    )
    what = f"{names.pop()}. " if len(names) == 1 else ""
    return titled(
        table,
        "published",
        f"Published numbers ({reason})" if reason else "Published numbers",
        f"{what}Numbers quoted from papers beside ours; a verdict only where the protocol matches.",
        header,
        rows,
        notes,
        [_record(found) for found in comparisons],
        folded=bool(reason),
    )


def _record(found: Comparison) -> dict[str, Value]:
    theirs, ours, interval = found.published, found.ours, found.interval
    return {
        "dataset": found.cell.cell.dataset,
        "attention": found.cell.variant,
        "metric": theirs.metric,
        "n": ours.n if ours else 0,
        "mean": ours.mean if ours else None,
        "sd": ours.sd if ours else None,
        "published": theirs.value,
        "published_runs": theirs.runs,
        "prediction_low": interval.low if interval else None,
        "prediction_high": interval.high if interval else None,
        "comparable": found.comparable,
        "verdict": found.verdict,
        "source": theirs.source,
        "remark": theirs.remark,
    }
