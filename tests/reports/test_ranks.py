"""Statistics over tasks against scipy, scikit-posthocs and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scikit_posthocs
from scipy import stats as scipy_stats

from reports import ranks


def scores(seed: int, tasks: int = 9, variants: int = 4, *, ties: bool = False) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(tasks, variants)) + np.arange(variants)
    return np.round(values) if ties else values


def test_ranks_share_ties_and_start_with_the_largest() -> None:
    assert ranks.rank_data(np.array([3.0, 5.0, 3.0, 1.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_friedman_is_scipys(seed: int, ties: bool) -> None:
    values = scores(seed, ties=ties)
    ours = ranks.friedman(values)
    expected = scipy_stats.friedmanchisquare(*values.T)
    assert (ours.statistic, ours.p) == pytest.approx((expected.statistic, expected.pvalue))


def test_friedman_of_one_great_tie_and_of_too_little() -> None:
    assert ranks.friedman(np.ones((4, 3))).p == 1.0
    with pytest.raises(ValueError, match="3 variants"):
        ranks.friedman(np.ones((4, 2)))


@pytest.mark.parametrize("seed", range(3))
def test_nemenyi_draws_the_line_where_posthocs_does(seed: int) -> None:
    values = scores(seed)
    distance = ranks.nemenyi_critical_difference(values.shape[1], values.shape[0])
    average = ranks.rank_data(values).mean(0)
    p_values = scikit_posthocs.posthoc_nemenyi_friedman(values).to_numpy()
    gaps = np.abs(average[:, None] - average[None, :])
    assert np.array_equal(gaps > distance, p_values < 0.05)


def test_nemenyi_quantile_is_demsars() -> None:
    # Demsar (2006), table 5: q = 2.728 for five classifiers at 0.05.
    assert ranks.nemenyi_critical_difference(5, 30) == pytest.approx(
        2.728 * np.sqrt(5 * 6 / (6 * 30)), rel=1e-3
    )


@pytest.mark.parametrize(("variants", "tasks"), [(2, 6), (3, 7), (4, 8), (5, 9), (6, 10), (8, 11)])
def test_tasks_needed_is_where_the_first_holm_step_can_reject(variants: int, tasks: int) -> None:
    assert ranks.tasks_needed(variants) == tasks
    pairs = variants * (variants - 1) / 2
    assert 2 / 2**tasks * pairs <= 0.05 < 2 / 2 ** (tasks - 1) * pairs


@pytest.mark.parametrize("n", [3, 6, 10, 15, 40])
def test_wilcoxon_is_scipys_exact(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    assert ranks.wilcoxon_p(values) == pytest.approx(
        scipy_stats.wilcoxon(values, method="exact").pvalue
    )


def test_wilcoxon_with_ties_by_hand() -> None:
    # Ranks of |d| = 1, 1, 2: 1.5, 1.5, 3; observed sum 3 of 1.5 - 1.5 + 3; patterns with
    # |sum| >= 3: all but |sum| = 0 (two of eight).
    assert ranks.wilcoxon_p([1.0, -1.0, 2.0]) == pytest.approx(6 / 8)
    assert ranks.wilcoxon_p([0.0, 0.0]) == 1.0


def test_cliques_join_what_no_test_separates() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=12)
    matrix = np.stack([base - 5, base + rng.normal(0, 0.1, 12), base + rng.normal(0, 0.1, 12)], 1)
    result = ranks.compare_ranks(["poor", "good", "fine"], matrix)
    assert result.names[2] == "poor"
    assert result.cliques == ((0, 1),)
    assert result.adjusted[(0, 2)] < 0.05 < result.adjusted[(0, 1)]


def test_interquartile_mean_is_scipys_trimmed_mean() -> None:
    values = np.random.default_rng(0).normal(size=(3, 11))
    assert ranks.interquartile_mean(values) == pytest.approx(
        scipy_stats.trim_mean(values, 0.25, axis=1)
    )


def test_probability_of_improvement_is_mann_whitney() -> None:
    rng = np.random.default_rng(0)
    ours, reference = rng.integers(0, 5, 6).astype(float), rng.integers(0, 5, 8).astype(float)
    u = scipy_stats.mannwhitneyu(ours, reference).statistic
    assert ranks.probability_of_improvement(ours, reference) == pytest.approx(u / 48)


def test_bootstrap_is_reproducible_and_stays_within_tasks() -> None:
    tasks = [np.array([1.0, 1.0, 1.0]), np.array([9.0, 9.0, 9.0])]
    first = ranks.aggregate_change(tasks, np.random.default_rng(1))
    # Seeds never leave their task, so with equal seeds nothing varies.
    assert first == ranks.aggregate_change(tasks, np.random.default_rng(2))
    assert first.interval is not None
    assert first.interval.low == first.interval.high == first.value == 5.0


def test_bootstrap_agrees_with_scipys() -> None:
    rng = np.random.default_rng(0)
    task = rng.normal(size=20)
    ours = ranks.aggregate_change([task], np.random.default_rng(1), draws=20_000).interval
    expected = scipy_stats.bootstrap(
        (task,),
        lambda x, axis: scipy_stats.trim_mean(x, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high), abs=0.03)


def test_improvement_over_tasks() -> None:
    pairs = [
        (np.array([2.0, 3.0]), np.array([0.0, 1.0])),
        (np.array([0.0, 1.0]), np.array([0.0, 1.0])),
    ]
    result = ranks.aggregate_improvement(pairs, np.random.default_rng(0))
    assert result.value == pytest.approx(0.75)
    assert result.interval is not None
    assert result.interval.low <= 0.75 <= result.interval.high


def test_single_seeds_have_no_bootstrap_interval() -> None:
    assert ranks.aggregate_change([np.array([1.0])], np.random.default_rng(0)).interval is None
    pair = (np.array([1.0]), np.array([0.0]))
    assert ranks.aggregate_improvement([pair], np.random.default_rng(0)).interval is None
