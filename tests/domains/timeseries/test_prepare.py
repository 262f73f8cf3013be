"""Preparation: TSLib's arrays, and an honest split that sees nothing of the test data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domains.contract import DataCorrupt
from domains.timeseries.config import DatasetConfig
from domains.timeseries.prepare import (
    CleanSet,
    clean,
    fingerprint,
    holdout_splits,
    moments,
    published_splits,
    shared_series,
    stratified_folds,
    stratified_part,
)
from domains.timeseries.sources import load
from domains.timeseries.ts_format import TsFile

VECTORS = Path(__file__).parents[2] / "vectors"


def made(*series: list[list[float]], labels: list[str]) -> TsFile:
    """A file of series given as channels of values."""
    classes = tuple(dict.fromkeys(labels))
    lengths = np.array([[len(channel) for channel in one] for one in series])
    values = np.array([value for one in series for channel in one for value in channel], float)
    return TsFile(classes, np.array([classes.index(x) for x in labels]), lengths, values)


def random_set(seed: int, count: int = 12, channels: int = 3, longest: int = 9) -> CleanSet:
    rng = np.random.default_rng(seed)
    steps = rng.integers(3, longest + 1, count)
    steps[0] = longest
    lengths = np.repeat(steps[:, None], channels, axis=1)
    values = rng.normal(2.0, 3.0, int(lengths.sum()))
    labels = np.arange(count) % 3
    return clean(TsFile(("a", "b", "c"), labels, lengths, values), "made", halve=False)


def test_equals_tslib_on_japanesevowels():
    """Tolerances of the vectors: means and sd rtol 1e-10, float32 arrays atol 1e-6."""
    stored = np.load(VECTORS / "uea_japanesevowels.npz", allow_pickle=False)
    loaded = load(DatasetConfig(name="JapaneseVowels"))
    train = clean(loaded.train, "train", halve=True)
    test = clean(loaded.test, "test", halve=True)
    splits = published_splits(train, test, instance_norm=False)
    for key, data, split in (("TRAIN", train, splits["train"]), ("TEST", test, splits["test"])):

        def ref(name: str, key: str = key) -> np.ndarray:
            return stored[f"{key}.{name}"]

        assert len(split.labels) == ref("num_series")
        assert split.series.shape[1] == stored["seq_len"]
        assert split.lengths.max() == ref("max_seq_len")
        np.testing.assert_array_equal(split.lengths, ref("lengths"))
        np.testing.assert_array_equal(split.labels, ref("label_codes"))
        names = np.unique(data.labels)
        np.testing.assert_array_equal(names.astype(int), ref("class_names"))
        mean, sd = moments(data)
        np.testing.assert_allclose(mean, ref("channel_mean"), rtol=1e-10)
        np.testing.assert_allclose(sd, ref("channel_sd"), rtol=1e-10)
        for row, name in ((0, "first"), (1, "second"), (-1, "last")):
            np.testing.assert_allclose(split.series[row], ref(f"series_{name}"), atol=1e-6)
            inside = np.arange(split.series.shape[1]) < split.lengths[row]
            np.testing.assert_array_equal(inside, ref(f"mask_{name}"))
        wide = split.series.astype(np.float64)
        close = {"rtol": 1e-6, "atol": 1e-4}
        np.testing.assert_allclose(wide.sum(1), ref("padded_series_channel_sum"), **close)
        np.testing.assert_allclose((wide**2).sum(1), ref("padded_series_channel_sum_sq"), **close)
        np.testing.assert_allclose(wide.sum(), ref("padded_sum"), **close)
        np.testing.assert_allclose((wide**2).sum(), ref("padded_sum_sq"), **close)


def test_masks_follow_true_lengths_of_7_to_29_steps():
    loaded = load(DatasetConfig(name="JapaneseVowels"))
    lengths = np.concatenate([loaded.train.lengths[:, 0], loaded.test.lengths[:, 0]])
    assert (lengths.min(), lengths.max(), loaded.train.lengths.max()) == (7, 29, 26)


def test_missing_values_are_interpolated_per_channel_and_counted():
    nan = float("nan")
    file = made(
        [[nan, 1.0, nan, nan, 4.0], [5.0, nan, nan, nan, nan]],
        [[1.0, 2.0, 3.0, 4.0, 5.0], [nan, nan, nan, nan, nan]],
        labels=["a", "b"],
    )
    data = clean(file, "train", halve=False)
    np.testing.assert_allclose(data.series[0, :, 0], [1, 1, 2, 3, 4])
    np.testing.assert_allclose(data.series[0, :, 1], 5.0)
    assert data.notes == (
        "train: 12 missing values interpolated",
        "train: 1 channels without any value, set to the mean",
    )
    for splits in (
        published_splits(data, data, instance_norm=False),
        holdout_splits(data, data, np.arange(2), np.arange(0), instance_norm=False),
    ):
        assert np.isfinite(splits["train"].series).all()
        np.testing.assert_array_equal(splits["train"].series[1, :, 1], 0.0)


def test_unequal_channels_are_filled_at_the_end():
    data = clean(made([[1.0, 2.0, 3.0], [4.0]], labels=["a"]), "train", halve=False)
    assert data.lengths.tolist() == [3]
    np.testing.assert_array_equal(data.series[0], [[1, 4], [2, 4], [3, 4]])


def test_tslib_halves_channels_longer_than_256_where_channels_differ():
    long, short = np.arange(301.0), np.arange(151.0)
    file = made([list(long), list(short)], [list(long), list(long)], labels=["a", "b"])
    data = clean(file, "train", halve=True)
    assert data.lengths.tolist() == [151, 151]
    np.testing.assert_array_equal(data.series[0, :, 0], long[::2])
    np.testing.assert_array_equal(data.series[0, :, 1], short)
    assert "train: 3 channels longer than 256 halved" in data.notes
    assert clean(file, "train", halve=False).lengths.tolist() == [301, 301]


def test_each_split_by_its_own_moments_under_tslib():
    train, test = random_set(1), random_set(2, longest=14)
    splits = published_splits(train, test, instance_norm=False)
    for data, split in ((train, splits["train"]), (test, splits["test"])):
        assert split.series.shape[1] == 14
        steps = split.series[:, : data.series.shape[1]][data.inside()].astype(float)
        np.testing.assert_allclose(steps.mean(0), 0.0, atol=1e-6)
        np.testing.assert_allclose(steps.std(0, ddof=1), 1.0, atol=1e-6)


def test_labels_are_ranks_within_each_file_under_tslib():
    train = made([[1.0, 2.0]], [[3.0, 5.0]], [[1.0, 0.0]], labels=["a", "b", "c"])
    test = made([[1.0, 2.0]], [[3.0, 1.0]], labels=["c", "b"])
    parts = [clean(file, "made", halve=True) for file in (train, test)]
    assert published_splits(*parts, instance_norm=False)["test"].labels.tolist() == [1, 0]
    splits = holdout_splits(*parts, np.arange(3), np.arange(0), instance_norm=False)
    assert splits["test"].labels.tolist() == [2, 1]


def test_class_without_training_series_is_an_error_under_holdout():
    train = clean(made([[1.0, 2.0]], labels=["a"]), "train", halve=False)
    test = clean(made([[1.0, 2.0]], labels=["b"]), "test", halve=False)
    with pytest.raises(DataCorrupt, match="classes without a training series: b"):
        holdout_splits(train, test, np.arange(1), np.arange(0), instance_norm=False)


def test_changing_test_data_never_changes_train_data_under_holdout_and_vice_versa():
    """Symptom: TRAIN and TEST were each standardised with their own statistics."""
    train, test = random_set(1), random_set(2)
    training, validation = np.arange(0, 9), np.arange(9, 12)

    def prepare(train: CleanSet, test: CleanSet) -> dict:
        return holdout_splits(train, test, training, validation, instance_norm=False)

    before = prepare(train, test)
    after = prepare(train, replace(test, series=test.series * 7 + 1))
    np.testing.assert_array_equal(before["train"].series, after["train"].series)
    np.testing.assert_array_equal(before["val"].series, after["val"].series)
    assert not np.array_equal(before["test"].series, after["test"].series)

    changed = train.series.copy()
    changed[validation] += 100.0
    after = prepare(replace(train, series=changed), test)
    np.testing.assert_array_equal(before["train"].series, after["train"].series)
    np.testing.assert_array_equal(before["test"].series, after["test"].series)

    changed = train.series.copy()
    changed[training] += 100.0
    after = prepare(replace(train, series=changed), test)
    assert not np.array_equal(before["test"].series, after["test"].series)


def test_channel_that_is_constant_in_training_is_not_divided_by_zero():
    train, test = random_set(1), random_set(2)
    train.series[:, :, 1] = 4.0
    splits = holdout_splits(train, test, np.arange(12), np.arange(0), instance_norm=False)
    np.testing.assert_array_equal(splits["train"].series[:, :, 1], 0.0)
    inside = test.inside()
    found = splits["test"].series[..., 1][inside]
    np.testing.assert_allclose(found, test.series[..., 1][inside] - 4.0, rtol=1e-5, atol=1e-6)


def test_instance_norm_of_both_protocols():
    """TSLib divides by the spread over channels at each step, the honest form over time."""
    train, test = random_set(1), random_set(2)
    published = published_splits(train, test, instance_norm=True)["train"]
    mean, sd = moments(train)
    case = ((train.series - mean) / sd)[1, : train.lengths[1]]
    case = case - case.mean(0)
    expected = case / np.sqrt(case.var(axis=1, keepdims=True) + 1e-5)
    found = published.series[1]
    np.testing.assert_allclose(found[: train.lengths[1]], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[train.lengths[1] :], 0.0)

    honest = holdout_splits(train, test, np.arange(12), np.arange(0), instance_norm=True)["test"]
    for row, steps in enumerate(honest.lengths):
        part = honest.series[row, :steps].astype(float)
        np.testing.assert_allclose(part.mean(0), 0.0, atol=1e-5)
        np.testing.assert_allclose(part.std(0), 1.0, atol=1e-2)


def test_validation_part_is_stratified_and_disjoint():
    labels = np.array(["a"] * 30 + ["b"] * 7 + ["c"] * 2 + ["d"])
    training, validation = stratified_part(labels, 0.2, seed=3)
    assert sorted([*training, *validation]) == list(range(len(labels)))
    counts = {name: int((labels[validation] == name).sum()) for name in "abcd"}
    assert counts == {"a": 6, "b": 1, "c": 1, "d": 0}
    again = stratified_part(labels, 0.2, seed=3)
    np.testing.assert_array_equal(validation, again[1])
    assert not np.array_equal(validation, stratified_part(labels, 0.2, seed=4)[1])


def test_folds_are_stratified_and_of_equal_size():
    labels = np.array(["a"] * 11 + ["b"] * 6 + ["c"] * 3)
    fold = stratified_folds(labels, 5, seed=0)
    assert np.bincount(fold).tolist() == [4, 4, 4, 4, 4]
    for name in "ab":
        counts = np.bincount(fold[labels == name], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_series_in_two_splits_are_refused_and_copies_counted():
    """Symptom: validation and test read the same data."""
    train = random_set(1)
    with pytest.raises(AssertionError, match="in two splits"):
        holdout_splits(train, train, np.arange(5), np.arange(4, 8), instance_norm=False)
    assert shared_series(train, random_set(2)) == 0
    assert shared_series(train, train) == 12


def test_fingerprint_follows_content():
    train, test = random_set(1), random_set(2)
    one = fingerprint({"train": train, "test": test})
    assert one == fingerprint({"test": random_set(2), "train": random_set(1)})
    changed = train.series.copy()
    changed[0, 0, 0] += 1e-9
    assert one != fingerprint({"train": replace(train, series=changed), "test": test})
    relabelled = replace(train, labels=train.labels[::-1])
    assert one != fingerprint({"train": relabelled, "test": test})
