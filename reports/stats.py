"""Statistics of one cell and of one comparison: seeds in, numbers with their uncertainty out.

Runs of two variants with equal seeds are pairs (same initial weights where shapes agree, same
order of the data), so comparisons are made on differences by seed. Nothing here draws random
numbers except :func:`sign_flip_p` beyond 32 pairs, and that takes an explicit generator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
MIN_PAIRS_FOR_TEST = 6
"""Smallest n at which an exact two-sided test on pairs can reach p < 0.05 (2 / 2^6 = 0.031)."""
MAX_PAIRS_ENUMERATED = 32
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Metrics are computed in single precision: values closer than this, relatively, are equal."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A closed interval `[low, high]`."""

    low: float
    high: float

    def covers(self, value: float) -> bool:
        """Whether `value` lies inside, ends included."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Interval:
        """The interval of the quantity times `factor`."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(ends[0], ends[1])


@dataclass(frozen=True)
class Sample:
    """Values of one cell over seeds.

    Attributes:
        n: number of values.
        mean: arithmetic mean.
        sd: sample standard deviation (divides by n - 1), None for n = 1.
    """

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True)
class Difference:
    """Paired difference "this minus reference" over the seeds that both have.

    Attributes:
        n: number of pairs.
        mean: mean difference, in the metric's own direction.
        sd: sample standard deviation of the differences, None for n = 1.
        interval: 95 % t-interval of the mean difference. None for n = 1, and when all differences
            are equal: a sample without spread gives no width to an interval.
        p: exact two-sided sign-flip p, None below six pairs.
        reference: mean of the reference over the same seeds.
    """

    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    p: float | None
    reference: float

    @property
    def constant(self) -> bool:
        """Whether at least two pairs show one and the same difference."""
        return self.n > 1 and self.sd == 0

    def stands_among(self, comparisons: int) -> bool:
        """Whether the t-interval leaves out 0 at the level 0.05 over so many comparisons."""
        if not self.sd:
            return False
        confidence = 1 - ALPHA / max(1, comparisons)
        return abs(self.mean) > t_quantile(self.n - 1, confidence) * self.sd / math.sqrt(self.n)


def describe(values: Sequence[float]) -> Sample | None:
    """Mean and sample standard deviation, None without values."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    return Sample(len(array), float(array.mean()), _sd(array))


def t_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t with `df` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + confidence / 2))


def paired_difference(
    ours: Mapping[int, float],
    reference: Mapping[int, float],
    *,
    test: bool = True,
    generator: np.random.Generator | None = None,
) -> Difference | None:
    """Difference by seed over the seeds of both, None if they share none.

    Args:
        ours: value by seed.
        reference: value by seed.
        test: whether to compute p.
        generator: for :func:`sign_flip_p`, needed beyond 32 pairs only.
    """
    seeds = sorted(ours.keys() & reference.keys())
    if not seeds:
        return None
    base = np.array([reference[seed] for seed in seeds], dtype=np.float64)
    values = np.array([ours[seed] for seed in seeds], dtype=np.float64) - base
    # Rounding of the metrics, not of the differences: 0.1 may be the difference of two near 98.
    noise = ROUNDING * float(np.abs([base, base + values]).max())
    values[np.abs(values) <= noise] = 0.0
    n, mean, sd = len(values), float(values.mean()), _sd(values, noise)
    interval = None
    if sd:
        half = t_quantile(n - 1) * sd / math.sqrt(n)
        interval = Interval(mean - half, mean + half)
    p = sign_flip_p(values, noise=noise, generator=generator) if test else None
    return Difference(n, mean, sd, interval, p, float(base.mean()))


def sign_flip_p(
    differences: Sequence[float] | Floats,
    *,
    noise: float = 0.0,
    generator: np.random.Generator | None = None,
    draws: int = 100_000,
) -> float | None:
    """Two-sided p of the sign-flip test of the mean difference.

    Under the null hypothesis each difference is symmetric about zero. Up to 32 pairs all 2^n sign
    patterns count, so p is exact; beyond, `draws` random patterns estimate it with the observed
    one counted in, so p is never 0.

    Args:
        differences: one a pair.
        noise: by how much rounding may have changed each.
        generator: needed beyond 32 pairs.
        draws: patterns that are drawn there.

    Returns:
        p, or None below six pairs, where no pattern could reach 0.05.

    Raises:
        ValueError: more than 32 pairs without a generator.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < MIN_PAIRS_FOR_TEST:
        return None
    # Sums of the same numbers in another order differ in the last digits; such ties must count.
    observed = abs(float(values.sum())) - 1e-9 * float(np.abs(values).sum()) - 2 * n * noise
    if n <= MAX_PAIRS_ENUMERATED:
        # A pattern is one of the first half with one of the second: 2 x 2^(n/2) sums are enough.
        left, right = _signed_sums(values[: n // 2]), np.sort(_signed_sums(values[n // 2 :]))
        above = len(right) - np.searchsorted(right, observed - left, side="left")
        below = np.searchsorted(right, -observed - left, side="right")
        # With all differences zero the tolerance is zero too, and each pattern is on both sides.
        hits = int(np.minimum(above + below, len(right)).sum())
        return float(hits / 2**n)
    if generator is None:
        raise ValueError(f"{n} pairs are too many to enumerate (limit 32): pass a generator")
    hits, block = 0, 10_000
    for start in range(0, draws, block):
        signs = generator.integers(0, 2, size=(min(block, draws - start), n)) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ values) >= observed))
    return (hits + 1) / (draws + 1)


def _signed_sums(values: Floats) -> Floats:
    """Sums under every pattern of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for position, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = running
    return adjusted


def smallest_reachable_p(n: int) -> float:
    """Smallest two-sided p that an exact paired test with `n` pairs can give."""
    return 2.0 / 2.0**n


def seeds_for_a_test(tests: int) -> int:
    """Fewest pairs with which Holm over so many exact tests can reject anything."""
    return next(n for n in itertools.count(1) if smallest_reachable_p(n) * tests <= ALPHA)


def not_distinguishable_from_best(
    cells: Mapping[str, Mapping[int, float]], higher_is_better: bool
) -> frozenset[str]:
    """Names to print in bold in one column.

    The best is the cell with the best mean among those with at least two seeds. It is bold, and so
    is every cell whose paired 95 % t-interval of the difference to the best covers 0, or whose
    values equal the best's. A cell that shares fewer than two seeds with the best, or differs from
    it by the same amount for every seed, is not bold: no interval says that it is as good. The
    intervals are not corrected for having picked the best after looking.

    Args:
        cells: value by seed for each name; only cells in which every expected seed is done.
        higher_is_better: direction of the metric.
    """
    means = {
        name: float(np.mean(list(values.values())))
        for name, values in cells.items()
        if len(values) >= 2
    }
    if len(means) < 2:
        return frozenset()
    sign = 1.0 if higher_is_better else -1.0
    best = max(sorted(means), key=lambda name: sign * means[name])
    bold = {best}
    for name in means:
        difference = paired_difference(cells[name], cells[best], test=False)
        if name == best or difference is None or difference.n < 2:
            continue
        if difference.interval is None:
            same = difference.mean == 0
        else:
            same = difference.interval.covers(0.0)
        if same:
            bold.add(name)
    return frozenset(bold)


def prediction_interval(
    values: Sequence[float], runs: int = 1, confidence: float = CONFIDENCE
) -> Interval | None:
    """Where the mean of `runs` further runs of ours would lie.

    This is the right yardstick for a number that somebody else obtained from `runs` runs: an
    interval of our mean alone ignores that their number has sampling error too.

    Returns:
        None for fewer than two values or for values without any spread.
    """
    sample = describe(values)
    if sample is None or not sample.sd:
        return None
    half = t_quantile(sample.n - 1, confidence) * sample.sd * math.sqrt(1 / sample.n + 1 / runs)
    return Interval(sample.mean - half, sample.mean + half)


def relative_change(difference: Difference, higher_is_better: bool) -> float | None:
    """Factor that turns a difference into percent of the reference, positive = better.

    The reference mean is taken as fixed: its own uncertainty is not part of the interval.
    """
    if difference.reference == 0:
        return None
    return (100.0 if higher_is_better else -100.0) / abs(difference.reference)


def _sd(values: Floats, noise: float = 0.0) -> float | None:
    """Sample standard deviation; rounding noise of equal values is zero, not 1e-17."""
    if len(values) < 2:
        return None
    sd = float(values.std(ddof=1))
    scale = float(np.abs(values).max())
    return 0.0 if sd <= max(noise, 1e-12 * scale) else sd
