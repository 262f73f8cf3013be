"""Cell statistics against scipy, statsmodels and cases worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from reports import stats


def by_seed(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_sample_sd_divides_by_n_minus_one() -> None:
    sample = stats.describe([1.0, 2.0, 3.0, 4.0])
    assert sample == stats.Sample(4, 2.5, pytest.approx(math.sqrt(5 / 3)))


def test_one_value_has_no_sd_and_none_gives_nothing() -> None:
    assert stats.describe([7.0]) == stats.Sample(1, 7.0, None)
    assert stats.describe([]) is None


@pytest.mark.parametrize("n", [2, 3, 7, 25])
def test_paired_interval_is_scipys(n: int) -> None:
    rng = np.random.default_rng(n)
    ours, reference = rng.normal(1, 1, n), rng.normal(0, 1, n)
    result = stats.paired_difference(
        by_seed(ours.tolist()), by_seed(reference.tolist()), generator=np.random.default_rng(0)
    )
    expected = scipy_stats.ttest_rel(ours, reference).confidence_interval(0.95)
    assert result is not None
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == pytest.approx(
        (expected.low, expected.high)
    )


def test_pairs_are_matched_by_seed_not_by_position() -> None:
    result = stats.paired_difference({3: 10.0, 1: 20.0, 9: 0.0}, {1: 18.0, 3: 9.0, 4: 5.0})
    assert result is not None
    assert (result.n, result.mean, result.reference) == (2, 1.5, 13.5)


def test_no_common_seed_is_no_difference() -> None:
    assert stats.paired_difference({0: 1.0}, {1: 1.0}) is None


def test_one_pair_has_neither_interval_nor_test() -> None:
    result = stats.paired_difference({0: 2.0}, {0: 1.0})
    assert result is not None
    assert (result.mean, result.sd, result.interval, result.p) == (1.0, None, None, None)


def test_equal_runs_have_no_interval_either() -> None:
    result = stats.paired_difference(by_seed([0.1, 0.2, 0.3]), by_seed([0.1, 0.2, 0.3]))
    assert result is not None
    assert (result.mean, result.interval, result.constant) == (0.0, None, True)


def test_constant_difference_has_no_interval_despite_rounding() -> None:
    result = stats.paired_difference(by_seed([0.3, 0.4, 0.7]), by_seed([0.2, 0.3, 0.6]))
    assert result is not None
    assert result.constant
    assert result.interval is None


def percent(correct: Sequence[int], samples: int) -> dict[int, float]:
    """Accuracies as a metric in single precision gives them."""
    return by_seed([float(np.float32(100 * hits / samples)) for hits in correct])


def test_one_test_sample_less_for_each_seed_is_a_constant_difference() -> None:
    """Symptom: `-0.12 [-0.12, -0.12]` and the verdict "worse" after two seeds."""
    result = stats.paired_difference(percent([70, 112], 850), percent([71, 113], 850))
    assert result is not None
    assert result.constant
    assert result.interval is None
    equal = stats.paired_difference({0: 98.1, 1: 97.2}, {0: float(np.float32(98.1)), 1: 97.2})
    assert equal is not None
    assert (equal.mean, equal.sd) == (0.0, 0.0)


def test_ties_count_that_single_precision_hides() -> None:
    reference = [342, 343, 344, 345, 346, 347]  # where rounding does break the ties
    gains = [1, 2, 3, -1, 2, 3]
    ours = [a + b for a, b in zip(reference, gains, strict=True)]
    result = stats.paired_difference(percent(ours, 370), percent(reference, 370))
    assert result is not None
    assert result.p == stats.sign_flip_p(gains)


@pytest.mark.parametrize("comparisons", [1, 4, 13])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_pairs_stand_among_comparisons_as_in_bonferronis_t_test(
    n: int, comparisons: int
) -> None:
    for seed in range(20):
        ours = np.random.default_rng(seed).normal(2, 1, n)
        result = stats.paired_difference(by_seed(ours.tolist()), by_seed([0.0] * n))
        assert result is not None
        p = scipy_stats.ttest_1samp(ours, 0).pvalue
        assert result.stands_among(comparisons) == (p * comparisons < 0.05)


@pytest.mark.parametrize(("tests", "seeds"), [(1, 6), (2, 7), (4, 8), (13, 10)])
def test_seeds_for_a_test(tests: int, seeds: int) -> None:
    assert stats.seeds_for_a_test(tests) == seeds
    strong = [stats.smallest_reachable_p(seeds)] + [1.0] * (tests - 1)
    weak = [stats.smallest_reachable_p(seeds - 1)] + [1.0] * (tests - 1)
    assert min(stats.holm(strong)) <= 0.05 < min(stats.holm(weak))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [6, 8, 11])
def test_sign_flip_is_scipys_exact_permutation_test(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.5, 1, n)
    expected = scipy_stats.permutation_test(
        (values,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    ).pvalue
    assert stats.sign_flip_p(values) == pytest.approx(expected)


def test_sign_flip_by_hand() -> None:
    # Of the 64 patterns only all plus and all minus reach |sum| = 21.
    assert stats.sign_flip_p([1, 2, 3, 4, 5, 6]) == 2 / 64
    # One negative: 19 is reached by (+, -1) patterns: sums 21, 19 and their mirrors.
    assert stats.sign_flip_p([-1, 2, 3, 4, 5, 6]) == 4 / 64
    assert stats.sign_flip_p([0.0] * 6) == 1.0


def test_sign_flip_counts_ties_that_rounding_hides() -> None:
    assert stats.sign_flip_p([0.1, 0.2, 0.3, -0.1, 0.2, 0.3]) == stats.sign_flip_p(
        [1, 2, 3, -1, 2, 3]
    )


@pytest.mark.parametrize(
    ("n", "p"), [(6, 0.03125), (8, 0.0078125), (20, 2 / 2**20), (32, 2 / 2**32)]
)
def test_smallest_reachable_p(n: int, p: float) -> None:
    assert stats.sign_flip_p(np.arange(1, n + 1)) == p == stats.smallest_reachable_p(n)


def test_no_test_below_six_pairs() -> None:
    assert stats.sign_flip_p([1, 2, 3, 4, 5]) is None


def test_many_pairs_are_sampled_with_the_callers_generator() -> None:
    values = np.random.default_rng(1).normal(0.4, 1, 40)
    with pytest.raises(ValueError, match="generator"):
        stats.sign_flip_p(values)
    p = stats.sign_flip_p(values, generator=np.random.default_rng(0))
    assert p == stats.sign_flip_p(values, generator=np.random.default_rng(0))
    assert p == pytest.approx(scipy_stats.ttest_1samp(values, 0).pvalue, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_statsmodels(seed: int) -> None:
    p_values = np.random.default_rng(seed).uniform(0, 0.2, 9)
    p_values[3] = p_values[5]
    expected = multipletests(p_values, method="holm")[1]
    assert stats.holm(p_values.tolist()) == pytest.approx(expected.tolist())


def test_holm_by_hand() -> None:
    # Step-down: 3 * .01, then max(.03, 2 * .02), then max(.04, .03).
    assert stats.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert stats.holm([]) == []


def test_bold_keeps_what_the_best_cannot_be_told_from() -> None:
    cells = {
        "a": by_seed([90.0, 91.0, 92.0]),
        "b": by_seed([89.9, 91.2, 91.8]),
        "c": by_seed([80.0, 81.1, 82.0]),
    }
    assert stats.not_distinguishable_from_best(cells, True) == {"a", "b"}
    assert stats.not_distinguishable_from_best(cells, False) == {"c"}


def test_bold_needs_two_seeds() -> None:
    assert stats.not_distinguishable_from_best({"a": {0: 1.0}, "b": {0: 2.0}}, True) == frozenset()
    cells = {"a": by_seed([1.0, 2.0]), "b": by_seed([1.1, 1.8]), "c": {0: 99.0}}
    assert "c" not in stats.not_distinguishable_from_best(cells, True)


def test_bold_needs_a_competitor() -> None:
    assert stats.not_distinguishable_from_best({"a": by_seed([1.0, 2.0])}, True) == frozenset()


def test_prediction_interval_by_hand() -> None:
    # mean 2, sd 1, t(2) = 4.302653: half width 4.302653 * sqrt(1/3 + 1).
    interval = stats.prediction_interval([1.0, 2.0, 3.0])
    assert interval is not None
    assert interval.high == pytest.approx(2 + 4.302652730 * math.sqrt(4 / 3))
    assert stats.prediction_interval([1.0]) is None
    assert stats.prediction_interval([1.0, 1.0]) is None


def test_prediction_interval_covers_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        interval = stats.prediction_interval(rng.normal(size=5).tolist(), runs=3)
        assert interval is not None
        hits += interval.covers(float(rng.normal(size=3).mean()))
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_relative_change_follows_the_direction() -> None:
    difference = stats.paired_difference({0: 2.0, 1: 2.2}, {0: 4.0, 1: 4.0})
    assert difference is not None
    factor = stats.relative_change(difference, higher_is_better=False)
    assert factor is not None
    assert difference.mean * factor == pytest.approx(47.5)
    zero = stats.paired_difference({0: 1.0}, {0: 0.0})
    assert zero is not None
    assert stats.relative_change(zero, True) is None
