"""Samples against the distributions that the paper states."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from domains.toy.generator import (
    CLASSES,
    KEY_WIDTH,
    Samples,
    draw,
    fingerprint,
    hidden_parameters,
)

MANY = 20_000


@cache
def drawn(biased: float = 0.5, seed: int = 3, **options: str) -> Samples:
    options = {"positions": "normal", **options}
    return draw(seed, "train", MANY, 20, biased=biased, **options)


def keys(samples: Samples) -> np.ndarray:
    return samples.tokens[..., :KEY_WIDTH].astype(np.float64)


def answers(samples: Samples) -> np.ndarray:
    return keys(samples)[np.arange(len(samples.labels)), samples.positions]


def test_shapes_and_labels():
    samples = drawn()
    assert samples.tokens.shape == (MANY, 20, 20)
    assert samples.tokens.dtype == np.float32
    classes = samples.tokens[..., KEY_WIDTH:]
    assert np.array_equal(classes.sum(-1), np.ones((MANY, 20)))
    assert np.array_equal(np.unique(classes), [0.0, 1.0])
    at_answer = classes[np.arange(MANY), samples.positions].argmax(-1)
    assert np.array_equal(at_answer, samples.labels)


def test_classes_are_uniform():
    counts = np.bincount(drawn().labels, minlength=CLASSES)
    assert stats.chisquare(counts).pvalue > 1e-3
    everywhere = drawn().tokens[..., KEY_WIDTH:].sum((0, 1))
    assert stats.chisquare(everywhere).pvalue > 1e-3


def test_positions_are_a_truncated_normal():
    """P(L = n) is the mass of N(10, 2) between n and n + 1; the mode holds a fifth."""
    counts = np.bincount(drawn().positions, minlength=20)
    normal = stats.norm(10, 2)
    expected = np.array([normal.cdf(n + 1) - normal.cdf(n) for n in range(20)])
    assert counts[10] / MANY == pytest.approx(0.19, abs=0.01)
    usual = expected * MANY > 5
    assert stats.chisquare(
        counts[usual], expected[usual] / expected[usual].sum() * counts[usual].sum()
    ).pvalue > 1e-3  # fmt: skip


def test_positions_are_cut_to_the_sequence():
    short = draw(0, "train", MANY, 8, positions="normal", biased=0.5)
    assert short.positions.min() >= 0
    assert short.positions.max() == 7
    assert (short.positions == 7).mean() > 0.9


def test_uniform_positions_are_uniform():
    counts = np.bincount(drawn(positions="uniform").positions, minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_half_of_the_answers_are_biased():
    share = drawn().biased.mean()
    assert share == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(MANY))
    assert not drawn(biased=0.0).biased.any()


def test_other_tokens_are_standard_normal():
    samples = drawn()
    inside = np.ones((MANY, 20), dtype=bool)
    inside[np.arange(MANY), samples.positions] = False
    others = keys(samples)[inside]
    assert stats.kstest(others[:50_000].ravel(), "norm").pvalue > 1e-3
    assert np.allclose(np.cov(others.T), np.eye(KEY_WIDTH), atol=0.02)


def test_unbiased_answers_have_the_covariance_of_the_data_set():
    samples = drawn(biased=0.0)
    spread, _ = hidden_parameters(3)
    covariance = spread @ spread.T
    found = answers(samples)
    assert np.allclose(found.mean(0), 0.0, atol=4 * math.sqrt(covariance.max() / MANY))
    assert np.allclose(np.cov(found.T), covariance, atol=0.05 * np.abs(covariance).max())


def test_biased_answers_lie_close_around_one_point():
    samples = drawn(biased=1.0)
    _, mean = hidden_parameters(3)
    rest = answers(samples) - mean
    assert np.allclose(rest.mean(0), 0.0, atol=4 * math.sqrt(0.1 / MANY))
    assert np.allclose(np.cov(rest.T), 0.1 * np.eye(KEY_WIDTH), atol=0.005)


def test_hidden_parameters_over_many_data_sets():
    """S is standard normal, and b ~ N(0, S S^T) given S: S^-1 b is standard normal."""
    drawn = [hidden_parameters(seed) for seed in range(300)]
    entries = np.array([spread for spread, _ in drawn]).ravel()
    assert stats.kstest(entries, "norm").pvalue > 1e-3
    whitened = np.array([np.linalg.solve(spread, mean) for spread, mean in drawn]).ravel()
    assert stats.kstest(whitened, "norm").pvalue > 1e-3


def test_a_data_set_depends_on_its_seed_alone():
    one, again, other = drawn(), drawn(), drawn(seed=4)
    assert fingerprint({"train": one}) == fingerprint({"train": again})
    assert fingerprint({"train": one}) != fingerprint({"train": other})


def test_a_larger_set_begins_with_the_smaller_one():
    small = draw(0, "train", 50, 20, positions="normal", biased=0.5)
    large = draw(0, "train", 80, 20, positions="normal", biased=0.5)
    for name in ("tokens", "labels", "positions", "biased"):
        assert np.array_equal(getattr(small, name), getattr(large, name)[:50]), name


def test_splits_share_no_samples():
    train = draw(0, "train", 50, 20, positions="normal", biased=0.0)
    test = draw(0, "test", 50, 20, positions="normal", biased=0.0)
    assert not np.isin(train.tokens[..., 0], test.tokens[..., 0]).any()
