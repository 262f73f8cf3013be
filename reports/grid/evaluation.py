"""Studies with their statistics: what every table, figure and sentence of them is made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.analysis import Verdict
from reports.grid.rates import Counts, Rate, RateDifference, Resampling
from reports.grid.studies import NOT_RUN, Outcomes, Study
from reports.rows import BASELINE


@dataclass(frozen=True)
class VariantStats:
    """One variant of a study, evaluated.

    Attributes:
        variant: label.
        rate: over the whole grid, None without a run that ended.
        difference: to the baseline, None for the baseline itself or without pairs.
        shares: percent of the ended runs by outcome.
        by_column: rate at each value of the first axis.
        cells: success in percent: [columns, lines], nan where nothing was run.
        words: what became of the other runs.
        complete: whether every run of the study has ended.
    """

    variant: str
    rate: Rate | None
    difference: RateDifference | None
    shares: dict[str, float]
    by_column: tuple[Rate | None, ...]
    cells: np.ndarray
    words: tuple[str, ...]
    complete: bool

    @property
    def verdict(self) -> Verdict:
        """Of the comparison with the baseline."""
        if self.variant == BASELINE:
            return "baseline"
        if self.difference is None or self.difference.interval is None:
            return "no interval"
        if self.difference.interval.covers(0.0):
            return "not distinguishable"
        if self.difference.corrected is None or self.difference.corrected.covers(0.0):
            return "not after correction"
        return "better" if self.difference.points > 0 else "worse"


@dataclass(frozen=True)
class StudyStats:
    """One study, evaluated.

    Attributes:
        study: the runs.
        variants: in the order of the study.
    """

    study: Study
    variants: tuple[VariantStats, ...]

    def of(self, variant: str) -> VariantStats:
        """The statistics of one variant."""
        return self.variants[self.study.variants.index(variant)]


def evaluate_study(study: Study) -> StudyStats:
    """All statistics of one study."""
    resampling = Resampling(len(study.data), len(study.seeds))
    base = study.codes.get(BASELINE)
    return StudyStats(study, tuple(_variant(study, v, base, resampling) for v in study.variants))


def _variant(
    study: Study, variant: str, base: Outcomes | None, resampling: Resampling
) -> VariantStats:
    codes = study.codes[variant]
    ended = codes != NOT_RUN
    hits, runs = (codes == 0).sum((2, 3)), ended.sum((2, 3))
    total = int(ended.sum())
    difference = None
    if base is not None and variant != BASELINE:
        both = ended & (base != NOT_RUN)
        difference = resampling.difference(
            by_seed((codes == 0) & both),
            by_seed((base == 0) & both),
            by_seed(both),
            comparisons=len(study.variants) - 1,
        )
    return VariantStats(
        variant,
        rate_of(codes, resampling),
        difference,
        {
            name: 100 * int((codes == index).sum()) / total if total else 0.0
            for index, name in enumerate(study.outcomes)
        },
        tuple(rate_of(column, resampling) for column in codes[:, None]),
        np.divide(100.0 * hits, runs, out=np.full(hits.shape, np.nan), where=runs > 0),
        tuple(study.words(variant)),
        total == len(study.places),
    )


def rate_of(codes: Outcomes, resampling: Resampling) -> Rate | None:
    """Success over some points of a grid: [columns, lines, data, init]."""
    return resampling.rate(by_seed(codes == 0), by_seed(codes != NOT_RUN))


def by_seed(mask: np.ndarray) -> Counts:
    """Number of marked runs by data and initialisation seed."""
    counts: Counts = mask.sum((0, 1))
    return counts
