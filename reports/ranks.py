"""Statistics over tasks: ranks, exact Wilcoxon tests, interquartile mean, bootstrap.

A task is one column of one table. Matrices have shape (tasks, variants); larger is better unless
a function says otherwise, so callers flip the sign of metrics where lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from reports.stats import ALPHA, CONFIDENCE, Floats, Interval, holm

BOOTSTRAP_DRAWS = 2000


def rank_data(values: Floats) -> Floats:
    """Ranks along the last axis, 1 = largest, ties share the average rank."""
    greater = (values[..., None, :] > values[..., :, None]).sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(-1)
    ranks: Floats = greater + (equal + 1) / 2
    return ranks


@dataclass(frozen=True)
class Friedman:
    """Friedman's test that all variants rank alike.

    Attributes:
        statistic: chi-square with correction for ties, `variants - 1` degrees of freedom.
        p: from the chi-square approximation.
        average_ranks: one per variant, 1 is best.
    """

    statistic: float
    p: float
    average_ranks: tuple[float, ...]


def friedman(scores: Floats) -> Friedman:
    """Friedman's test over tasks.

    Args:
        scores: (tasks, variants), larger is better; at least 2 tasks and 3 variants.

    Raises:
        ValueError: too few tasks or variants.
    """
    from scipy.special import chdtrc

    tasks, k = scores.shape
    if tasks < 2 or k < 3:
        raise ValueError(f"Friedman's test needs 2 tasks and 3 variants, got {tasks} and {k}")
    ranks = rank_data(scores)
    average = ranks.mean(0)
    between = 12 * tasks / (k * (k + 1)) * float(((average - (k + 1) / 2) ** 2).sum())
    ties = 0.0
    for row in scores:
        counts = np.unique(row, return_counts=True)[1].astype(np.float64)
        ties += float((counts**3 - counts).sum())
    correction = 1 - ties / (tasks * (k**3 - k))
    if correction == 0:  # every task is one single tie: nothing differs
        return Friedman(0.0, 1.0, tuple(average.tolist()))
    statistic = between / correction
    return Friedman(statistic, float(chdtrc(k - 1, statistic)), tuple(average.tolist()))


def nemenyi_critical_difference(variants: int, tasks: int, alpha: float = ALPHA) -> float:
    """Distance of average ranks beyond which two variants differ by Nemenyi's test."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - alpha, variants, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(variants * (variants + 1) / (6 * tasks))


def tasks_needed(variants: int, alpha: float = ALPHA) -> int:
    """Fewest tasks with which Holm over all pairs of exact Wilcoxon tests can reject anything."""
    pairs = variants * (variants - 1) // 2
    return math.ceil(1 + math.log2(pairs / alpha) - 1e-12)


def wilcoxon_p(differences: Sequence[float] | Floats) -> float:
    """Exact two-sided p of Wilcoxon's signed-rank test, also with ties.

    Magnitudes are ranked with zeros included (Pratt), zeros then take no part; tied magnitudes
    share average ranks. The distribution of the rank sum is computed, not approximated.
    """
    values = np.asarray(differences, dtype=np.float64)
    # Differences of printed percentages carry rounding noise that would break true ties.
    magnitude = np.abs(values).round(9)
    ranks = len(values) + 1 - rank_data(magnitude)
    # Ranks are multiples of one half, so twice their sum is an index.
    doubled = np.rint(2 * ranks).astype(int)[magnitude > 0]
    total = int(doubled.sum())
    observed = int(doubled[values[magnitude > 0] > 0].sum())
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[: len(chances) - rank]
        chances = (chances + moved) / 2
    distance = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(chances[distance >= abs(2 * observed - total)].sum()))


@dataclass(frozen=True)
class RankComparison:
    """What a critical-difference diagram shows.

    Attributes:
        names: variants, best average rank first.
        average_ranks: in the order of `names`.
        tasks: number of tasks.
        adjusted: Holm-adjusted exact Wilcoxon p for each pair of positions in `names`.
        cliques: first and last position of each maximal run of variants that no test separates.
    """

    names: tuple[str, ...]
    average_ranks: tuple[float, ...]
    tasks: int
    adjusted: dict[tuple[int, int], float]
    cliques: tuple[tuple[int, int], ...]


def compare_ranks(names: Sequence[str], scores: Floats, alpha: float = ALPHA) -> RankComparison:
    """Average ranks with all pairs tested by exact Wilcoxon and Holm.

    Args:
        names: variants.
        scores: (tasks, variants), larger is better.
        alpha: family-wise level.
    """
    average = rank_data(scores).mean(0)
    order = sorted(range(len(names)), key=lambda index: (average[index], names[index]))
    scores = scores[:, order]
    pairs = list(combinations(range(len(order)), 2))
    p_values = holm([wilcoxon_p(scores[:, a] - scores[:, b]) for a, b in pairs])
    adjusted = dict(zip(pairs, p_values, strict=True))
    spans: list[tuple[int, int]] = []
    for first in range(len(order)):
        last = first
        while last + 1 < len(order) and all(
            adjusted[(inside, last + 1)] > alpha for inside in range(first, last + 1)
        ):
            last += 1
        if last > first and not (spans and spans[-1][1] >= last):
            spans.append((first, last))
    return RankComparison(
        tuple(names[index] for index in order),
        tuple(float(average[index]) for index in order),
        len(scores),
        adjusted,
        tuple(spans),
    )


def interquartile_mean(values: Floats) -> Floats:
    """Mean of the middle half along the last axis: `int(n / 4)` values cut at either end."""
    ordered = np.sort(values, axis=-1)
    cut = values.shape[-1] // 4
    middle: Floats = ordered[..., cut : values.shape[-1] - cut].mean(-1)
    return middle


def probability_of_improvement(ours: Floats, reference: Floats) -> float:
    """Chance that a run of ours beats a run of the reference on one task; ties count half.

    Args:
        ours: (n,), larger is better.
        reference: (m,).
    """
    return float(_wins(ours, reference).mean())


def _wins(ours: Floats, reference: Floats) -> Floats:
    """1 where ours is larger, 1/2 where equal, shape (n, m)."""
    wins: Floats = (ours[:, None] > reference) + 0.5 * (ours[:, None] == reference)
    return wins


@dataclass(frozen=True)
class Aggregate:
    """A statistic over tasks with its bootstrap interval.

    Attributes:
        value: on all seeds.
        interval: percentile interval, None where a task has a single seed.
    """

    value: float
    interval: Interval | None


def aggregate_change(
    changes: Sequence[Floats],
    generator: np.random.Generator,
    *,
    draws: int = BOOTSTRAP_DRAWS,
    confidence: float = CONFIDENCE,
) -> Aggregate:
    """Interquartile mean over all tasks and seeds, seeds resampled within each task.

    Args:
        changes: per task the values by seed.
        generator: source of the resampling.
        draws: bootstrap samples.
        confidence: of the percentile interval.
    """
    value = float(interquartile_mean(np.concatenate(list(changes))))
    if any(len(task) < 2 for task in changes):
        return Aggregate(value, None)
    resampled = [task[_resample(len(task), draws, generator)] for task in changes]
    statistic = interquartile_mean(np.concatenate(resampled, axis=1))
    return Aggregate(value, _percentiles(statistic, confidence))


def aggregate_improvement(
    pairs: Sequence[tuple[Floats, Floats]],
    generator: np.random.Generator,
    *,
    draws: int = BOOTSTRAP_DRAWS,
    confidence: float = CONFIDENCE,
) -> Aggregate:
    """Probability of improvement averaged over tasks, paired seeds resampled within each task.

    Args:
        pairs: per task (ours, reference) in the same order of seeds, larger is better.
        generator: source of the resampling.
        draws: bootstrap samples.
        confidence: of the percentile interval.
    """
    value = float(np.mean([probability_of_improvement(*pair) for pair in pairs]))
    if any(len(ours) < 2 for ours, _ in pairs):
        return Aggregate(value, None)
    total = np.zeros(draws)
    for ours, reference in pairs:
        n = len(ours)
        wins = _wins(ours, reference)
        # How often each seed was drawn is all that matters for a mean over pairs of seeds.
        drawn = _resample(n, draws, generator) + n * np.arange(draws)[:, None]
        times = np.bincount(drawn.ravel(), minlength=n * draws).reshape(draws, n).astype(float)
        total += ((times @ wins) * times).sum(1) / n**2
    return Aggregate(value, _percentiles(total / len(pairs), confidence))


def _resample(n: int, draws: int, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, n, size=(draws, n))


def _percentiles(statistic: Floats, confidence: float) -> Interval:
    low, high = np.quantile(statistic, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Interval(float(low), float(high))
