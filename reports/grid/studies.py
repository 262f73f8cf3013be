"""Rows of grid studies arranged: one study a table, one array of outcomes a variant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reports.grid.places import in_order, order
from reports.groups import KIND_NOTES, TableKey, run_command, slugs_of
from reports.rows import BASELINE, GridSpec, ReportError, Row, variant_order

DIVERGED = "diverged"
NOT_RUN = -1

Outcomes = NDArray[np.int8]
"""Index of the outcome of each run, `NOT_RUN` where there is none: [columns, lines, data, init]."""

Place = tuple[int, int, int, int]


@dataclass(frozen=True, order=True)
class StudyKey(TableKey):
    """What all runs of a study share."""

    dataset: str

    def title(self) -> str:
        """For headings."""
        own = f", {self.dataset}" if self.dataset != self.domain else ""
        return f"{self.domain}{own}, protocol {self.protocol or 'unknown'}"

    def settings(self) -> dict[str, str]:
        """The parts of `setting` by key."""
        pairs = (part.partition("=") for part in self.setting.split(", ") if part)
        return {key: value for key, _, value in pairs}


@dataclass(frozen=True)
class Study:
    """One grid of hyperparameters, run for several variants.

    Attributes:
        key: what its runs share.
        slug: for file names and anchors, unique in a report.
        spec: of the grid.
        variants: the baseline first.
        columns: values of the first axis.
        lines: values of the second axis.
        data: values of the replicates, one tuple a repetition of the data.
        seeds: of the initialisation.
        rows: all runs.
    """

    key: StudyKey
    slug: str
    spec: GridSpec
    variants: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    data: tuple[tuple[str, ...], ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes, success first; a diverged run has one of its own."""
        return (*(name.rpartition("/")[2] for name in self.spec.outcomes), DIVERGED)

    @cached_property
    def by_variant(self) -> Mapping[str, Mapping[Place, Row]]:
        """Runs by variant and place."""
        index = [
            {value: position for position, value in enumerate(values)}
            for values in (self.columns, self.lines, self.data, self.seeds)
        ]
        found: dict[str, dict[Place, Row]] = {variant: {} for variant in self.variants}
        for row in self.rows:
            assert row.grid is not None
            column, line, *data = row.grid.values
            at = (
                index[0][column], index[1][line], index[2][tuple(data)], index[3][row.seed],
            )  # fmt: skip
            found[row.variant][at] = row
        return found

    @cached_property
    def codes(self) -> Mapping[str, Outcomes]:
        """Outcome of each run, by variant."""
        shape = tuple(map(len, (self.columns, self.lines, self.data, self.seeds)))
        codes = {}
        for variant, runs in self.by_variant.items():
            codes[variant] = np.full(shape, NOT_RUN, dtype=np.int8)
            for place, row in runs.items():
                outcome = outcome_of(row)
                if outcome is not None:
                    codes[variant][place] = self.outcomes.index(outcome)
        return codes

    @cached_property
    def places(self) -> frozenset[Place]:
        """Where any variant has, or should have, a run."""
        return frozenset().union(*(runs.keys() for runs in self.by_variant.values()))

    def points(self) -> frozenset[tuple[str, str]]:
        """Values of the two axes that were run."""
        return frozenset((self.columns[c], self.lines[line]) for c, line, *_ in self.places)

    def words(self, variant: str) -> list[str]:
        """What became of the runs that have no outcome, and how many diverged."""
        expected = len(self.places)
        states = Counter(row.state for row in self.by_variant[variant].values())
        absent = expected - len(self.by_variant[variant]) + states.pop("planned", 0)
        ended = [
            f"{state} {states[state]}/{expected}" for state in sorted(states.keys() - {"done"})
        ]
        return ended + ([f"not run {absent}/{expected}"] if absent else [])

    def missing(self, variant: str) -> list[Place]:
        """Places that another run of the variant could still fill."""
        runs = self.by_variant[variant]
        ended = {"done", "diverged", "skipped"}
        return [p for p in sorted(self.places) if p not in runs or runs[p].state not in ended]

    def missing_command(self, variant: str) -> str:
        """One command that fills what is missing of a variant; finished runs are not repeated."""
        example = next(row for row in self.rows if row.variant == variant)
        columns, lines, data, seeds = (
            sorted(set(v)) for v in zip(*self.missing(variant), strict=True)
        )
        replicates = zip(*(self.data[index] for index in data), strict=True)
        values = [
            [self.columns[index] for index in columns],
            [self.lines[index] for index in lines],
            *(in_order(values) for values in replicates),
        ]
        lists = [f"{key}={','.join(v)}" for key, v in zip(self.spec.keys, values, strict=True)]
        head, _, tail = run_command(
            example, self.key.dataset, [self.seeds[index] for index in seeds]
        ).rpartition(" ")
        return " ".join([head, *lists, tail])

    def notes(self) -> list[str]:
        """Caveats that must stand with the numbers."""
        notes = [KIND_NOTES[self.key.kind]] if self.key.kind in KIND_NOTES else []
        return notes + sorted({note for row in self.rows for note in row.notes})

    @property
    def has_baseline(self) -> bool:
        """Whether there is something to compare with."""
        return BASELINE in self.variants


def outcome_of(row: Row) -> str | None:
    """How a run ended, None if it did not."""
    if row.state == DIVERGED:
        return DIVERGED
    if not row.done or row.grid is None:
        return None
    return next(n.rpartition("/")[2] for n in row.grid.spec.outcomes if row.metrics.get(n) == 100)


def study_key(row: Row) -> StudyKey:
    """The study that a row belongs to."""
    return StudyKey(
        row.domain, row.protocol, row.protocol_version, row.model, row.recipe, row.budget,
        row.kind, row.setting, row.dataset,
    )  # fmt: skip


def arrange_studies(rows: Iterable[Row]) -> list[Study]:
    """The grid studies among `rows`, each with its runs.

    Raises:
        ReportError: runs with equal replicates read different data, or name different grids.
    """
    members: dict[StudyKey, list[Row]] = defaultdict(list)
    for row in rows:
        if row.grid is not None:
            members[study_key(row)].append(row)
    keys = sorted(members, key=lambda key: _order(key, len(members[key])))
    slugs = slugs_of(keys, "dataset", empty="")
    return [_study(key, f"{slugs[key]}-grid", members[key]) for key in keys]


def _order(key: StudyKey, runs: int) -> tuple[object, ...]:
    """Largest studies first, then by their settings as numbers."""
    settings = [(name, *order(value)) for name, value in key.settings().items()]
    head = (key.protocol, key.protocol_version, key.model, key.recipe, key.budget, key.kind)
    return (key.domain, key.dataset, -runs, *head, settings)


def _study(key: StudyKey, slug: str, rows: Sequence[Row]) -> Study:
    places = [row.grid for row in rows if row.grid is not None]
    specs = {place.spec for place in places}
    if len(specs) > 1:
        raise ReportError(f"runs of {key.title()} name different grids: {sorted(map(str, specs))}")
    spec = specs.pop()
    prints: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row, place in zip(rows, places, strict=True):
        if row.fingerprint:
            prints[place.values[2:]].add(row.fingerprint)
    for values, found in prints.items():
        if len(found) > 1:
            named = ", ".join(f"{k}={v}" for k, v in zip(spec.replicates, values, strict=True))
            raise ReportError(
                f"runs of {key.title()} with {named or 'equal settings'} read different data and "
                f"must not share a study: {sorted(found)}"
            )
    return Study(
        key,
        slug,
        spec,
        tuple(sorted({row.variant for row in rows}, key=variant_order)),
        tuple(in_order(place.values[0] for place in places)),
        tuple(in_order(place.values[1] for place in places)),
        tuple(sorted({p.values[2:] for p in places}, key=lambda v: [order(t) for t in v])),
        tuple(sorted({row.seed for row in rows})),
        tuple(rows),
    )


NAMES: Mapping[str, str] = {
    "recipe.optimizer.lr": "learning rate",
    "recipe.optimizer.weight_decay": "weight decay",
    "recipe.qk_lr_ratio": "query-key learning rate (ratio to the rest)",
    "dataset.seed": "data seed",
    "dataset.train": "number of training samples",
}
"""Keys as people call them."""


def called(key: str) -> str:
    """Name of a key in headings."""
    return NAMES.get(key) or key.rpartition(".")[2].replace("_", " ")
