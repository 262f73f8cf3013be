"""Rows arranged as tables: one group a table, one column a data set, one cell a variant."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from reports.rows import BASELINE, MetricInfo, Row, check_unmixed, variant_order

KIND_NOTES = {
    "synthetic": "made-up data: a test of the program, no evidence about any variant",
    "sample": "real data, but not the published split: not comparable with published numbers",
    "regenerated": "data made by the published generator: not the published files",
}
_OUTCOMES = ("diverged", "oom", "timeout", "failed", "skipped", "interrupted", "running")

_LONGEST_PART = 80
"""Characters of a part of a slug: names of files are limited."""


@dataclass(frozen=True, order=True)
class TableKey:
    """What all runs of a table share."""

    domain: str
    protocol: str
    protocol_version: int
    model: str
    recipe: str
    budget: str
    kind: str
    setting: str

    def title(self) -> str:
        """For headings."""
        return f"{self.domain}, protocol {self.protocol or 'unknown'}"

    def details(self) -> str:
        """The rest of what is shared, in words."""
        parts = [
            f"model {self.model}" if self.model else "",
            f"recipe {self.recipe}" if self.recipe else "",
            f"budget {self.budget}" if self.budget else "",
            f"{self.kind} data" if self.kind != "unknown" else "kind of data unknown",
            f"protocol version {self.protocol_version}" if self.protocol_version else "",
            self.setting,
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Cell:
    """The runs of one variant in one column.

    Attributes:
        variant: label of the row.
        dataset: key of the data set.
        rows: by seed.
        seeds: that any variant of the column has or should have.
    """

    variant: str
    dataset: str
    rows: dict[int, Row]
    seeds: tuple[int, ...]

    def values(self, metric: str) -> dict[int, float]:
        """Value by seed, of finished runs that have the metric."""
        return {
            seed: row.metrics[metric]
            for seed, row in sorted(self.rows.items())
            if row.done and metric in row.metrics
        }

    @cached_property
    def done(self) -> list[Row]:
        """Finished runs in the order of seeds."""
        return [row for _, row in sorted(self.rows.items()) if row.done]

    @property
    def complete(self) -> bool:
        """Whether every seed of the column is done."""
        return len(self.done) == len(self.seeds)

    def words(self) -> list[str]:
        """Outcomes other than done, as the table prints them; empty for a complete cell."""
        expected = len(self.seeds)
        if not any(row.state != "planned" for row in self.rows.values()):
            return ["not run"]
        counts = Counter(row.state for row in self.rows.values())
        words = [
            state if counts[state] == expected else f"{state} {counts[state]}/{expected}"
            for state in _OUTCOMES
            if counts[state]
        ]
        explained = len(self.done) + sum(counts[state] for state in _OUTCOMES)
        if self.done and explained < expected:
            words.insert(0, f"{len(self.done)}/{expected} seeds")
        return words

    def missing(self) -> list[int]:
        """Seeds that another run could still fill."""
        ended = {"done", "diverged", "skipped"}
        return [s for s in self.seeds if s not in self.rows or self.rows[s].state not in ended]


@dataclass(frozen=True)
class Column:
    """All variants on one data set.

    Attributes:
        dataset: key of the data set.
        label: heading; names the content of the data where one table has several.
        fingerprint: of the data.
        primary: name of the metric in the table, empty if no run is done.
        info: how it reads.
        cells: by variant, every variant of the table.
        seeds: that occur in the column.
    """

    dataset: str
    label: str
    fingerprint: str
    primary: str
    info: MetricInfo
    cells: dict[str, Cell]
    seeds: tuple[int, ...]

    @cached_property
    def test_size(self) -> int | None:
        """Samples of the test split, if all runs agree."""
        sizes = {row.test_size for cell in self.cells.values() for row in cell.done}
        return sizes.pop() if len(sizes) == 1 else None

    def metrics(self) -> dict[str, MetricInfo]:
        """Every metric of the column, the primary one first."""
        found: dict[str, MetricInfo] = {}
        for cell in self.cells.values():
            for row in cell.done:
                for name in row.metrics:
                    found.setdefault(name, row.info.get(name, MetricInfo(None)))
        return dict(sorted(found.items(), key=lambda item: (item[0] != self.primary, item[0])))


@dataclass(frozen=True)
class Group:
    """One table.

    Attributes:
        key: what its runs share.
        slug: for file names and anchors, unique in a report.
        variants: rows, the baseline first.
        columns: by data set.
        rows: all runs.
    """

    key: TableKey
    slug: str
    variants: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def baseline(self) -> str | None:
        """The variant that others are compared with, None if the table lacks it."""
        return BASELINE if BASELINE in self.variants else None

    def notes(self) -> list[str]:
        """Caveats that must stand with the numbers."""
        notes: dict[str, list[str]] = defaultdict(list)
        every = [column.label for column in self.columns if column.primary]
        if self.key.kind in KIND_NOTES:
            notes[KIND_NOTES[self.key.kind]] = every
        for column in self.columns:
            if column.info.note:
                notes[f"{column.primary}: {column.info.note}"].append(column.label)
            for text in sorted({note for row in column_rows(column) for note in row.notes}):
                if text != column.info.note:
                    notes[text].append(column.label)
        return [
            text if labels == every else f"{', '.join(labels)}: {text}"
            for text, labels in notes.items()
        ]


def column_rows(column: Column) -> list[Row]:
    """All runs of a column."""
    return [row for cell in column.cells.values() for row in cell.rows.values()]


def arrange(rows: Iterable[Row]) -> list[Group]:
    """Rows as tables; those of grid studies have their own (see :mod:`reports.grid.studies`).

    Raises:
        ReportError: a table would mix what must not be mixed.
    """
    members: dict[TableKey, list[Row]] = defaultdict(list)
    for row in rows:
        if row.grid is not None:
            continue
        key = TableKey(
            row.domain, row.protocol, row.protocol_version, row.model, row.recipe, row.budget,
            row.kind, row.setting,
        )  # fmt: skip
        members[key].append(row)
    keys = sorted(members)
    slugs = slugs_of(keys)
    return [_group(key, slugs[key], members[key]) for key in keys]


def _group(key: TableKey, slug: str, rows: list[Row]) -> Group:
    variants = tuple(sorted({row.variant for row in rows}, key=variant_order))
    by_column: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_column[(row.dataset, row.fingerprint, row.primary)].append(row)
    contents = Counter(dataset for dataset, _, _ in by_column)
    columns = []
    for (dataset, fingerprint, primary), found in sorted(by_column.items()):
        check_unmixed(found)
        label = dataset
        if contents[dataset] > 1:
            label = f"{dataset} (data {fingerprint.removeprefix('sha256:')[:6] or 'unknown'})"
        seeds = tuple(sorted({row.seed for row in found}))
        cells = {
            variant: Cell(
                variant, dataset, {row.seed: row for row in found if row.variant == variant}, seeds
            )
            for variant in variants
        }
        info = next((row.info[primary] for row in found if primary in row.info), MetricInfo(None))
        columns.append(Column(dataset, label, fingerprint, primary, info, cells, seeds))
    return Group(key, slug, variants, tuple(columns), tuple(rows))


K = TypeVar("K", bound=TableKey)


def slugs_of(keys: Sequence[K], *first: str, empty: str = "none") -> dict[K, str]:
    """Short names: domain and protocol always, the rest only where it tells tables apart.

    Args:
        keys: to name.
        first: further fields that may tell them apart.
        empty: what stands for an empty field; nothing if it is empty itself.
    """
    slugs: dict[K, str] = {}
    for key in keys:
        siblings = [k for k in keys if (k.domain, k.protocol) == (key.domain, key.protocol)]
        parts = [key.domain, key.protocol or "unknown"]
        for name in (
            *first, "protocol_version", "model", "recipe", "budget", "kind", "setting",
        ):  # fmt: skip
            if len({getattr(sibling, name) for sibling in siblings}) > 1:
                value = getattr(key, name)
                parts.append(f"v{value}" if name == "protocol_version" else str(value) or empty)
        slug = "-".join(_safe(part) for part in parts if part)
        while slug in slugs.values():
            slug += "_"
        slugs[key] = slug
    return slugs


def _safe(text: str) -> str:
    safe = "".join(c if c.isalnum() or c in "_.=" else "_" for c in text).strip("_.")
    if len(safe) <= _LONGEST_PART:
        return safe
    return f"{safe[: _LONGEST_PART - 9]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_command(row: Row, dataset: str, seeds: Sequence[int]) -> str:
    """The command that makes runs like `row` on a data set."""
    parts = [
        f"domain={row.domain}",
        f"dataset={dataset}",
        f"attention={row.attention}",
        f"protocol={row.protocol}" if row.protocol else "",
        f"recipe={row.recipe}" if row.recipe else "",
        f"budget={row.budget}" if row.budget else "",
        "synthetic=true" if row.kind == "synthetic" else "",
        *(part for part in f"{row.options}, {row.setting}".split(", ") if "=unset" not in part),
        f"seed={','.join(map(str, seeds))}",
    ]
    return " ".join(["python run_all.py run", *(part for part in parts if part)])


def missing_command(cell: Cell, group: Group) -> str:
    """The command that fills what is missing of a cell."""
    example = next(row for row in group.rows if row.variant == cell.variant)
    return run_command(example, cell.dataset, cell.missing())
