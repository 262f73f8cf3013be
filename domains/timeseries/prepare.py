"""From parsed files to the arrays that a model reads: fill, split, standardise, pad.

Shapes: n series, L steps, C channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domains.common.seeds import derive
from domains.contract import DataCorrupt
from domains.timeseries.ts_format import TsFile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HALVED_ABOVE = 256
"""TSLib halves channels that are longer than this where the channels of a series differ."""

CONSTANT_SD = 1e-8
"""Channels with a smaller standard deviation in training are centred but not scaled."""


@dataclass(frozen=True)
class Split:
    """Prepared series.

    Attributes:
        series: (n, L, C) float32, zero behind the end of a series.
        lengths: (n,) int64, real steps.
        labels: (n,) int64.
    """

    series: NDArray[np.float32]
    lengths: Ints
    labels: Ints


@dataclass(frozen=True)
class CleanSet:
    """Series of one file with missing values filled, not standardised.

    Attributes:
        series: (n, L, C) float64, NaN behind the end of a series and in channels without values.
        lengths: (n,) int64, steps of the longest channel.
        labels: (n,) names of the classes.
        notes: what had to be done.
    """

    series: Floats
    lengths: Ints
    labels: NDArray[np.str_]
    notes: tuple[str, ...]

    def inside(self) -> NDArray[np.bool_]:
        """(n, L) True at real steps."""
        return np.arange(self.series.shape[1]) < self.lengths[:, None]


def clean(file: TsFile, name: str, *, halve: bool) -> CleanSet:
    """Even out the channels of each series and fill missing values.

    Values are interpolated linearly between their neighbours in time and repeated at the ends,
    per series and channel; a channel that is shorter than its series is missing at the end.

    Args:
        file: the parsed file.
        name: of the split, for notes.
        halve: TSLib's rule for series whose channels differ in length: in the whole split keep
            every second step of channels longer than 256.
    """
    dense, lengths, notes = file.dense(), file.lengths, []
    if (lengths != lengths[:, :1]).any():
        notes.append(f"{name}: channels of unequal length inside a series")
        if halve:
            long = lengths > HALVED_ABOVE
            halved = np.full_like(dense, np.nan)
            every_second = dense[..., ::2]
            halved[..., : every_second.shape[-1]] = every_second
            dense = np.where(long[..., None], halved, dense)
            lengths = np.where(long, (lengths + 1) // 2, lengths)
            notes.append(f"{name}: {int(long.sum())} channels longer than {HALVED_ABOVE} halved")
    steps = lengths.max(axis=1)
    dense = dense[..., : steps.max()]
    missing = np.isnan(dense) & (np.arange(dense.shape[-1]) < steps[:, None, None])
    empty = 0
    for row, channel in np.argwhere(missing.any(axis=-1)):
        values, known = dense[row, channel, : steps[row]], ~missing[row, channel, : steps[row]]
        if known.any():
            positions = np.arange(len(values))
            values[~known] = np.interp(positions[~known], positions[known], values[known])
        else:
            empty += 1
    if missing.any():
        notes.append(f"{name}: {int(missing.sum())} missing values interpolated")
    if empty:
        notes.append(f"{name}: {empty} channels without any value, set to the mean")
    series = np.ascontiguousarray(dense.transpose(0, 2, 1))
    return CleanSet(series, steps, np.array(file.classes)[file.labels], tuple(notes))


def refuse_mismatch(train: CleanSet, test: CleanSet) -> None:
    """Refuse two files that do not belong to one set.

    Raises:
        DataCorrupt: the files differ in channels, or TEST has a class that TRAIN has not.
    """
    channels = train.series.shape[2], test.series.shape[2]
    if channels[0] != channels[1]:
        raise DataCorrupt("TRAIN has {} channels, but TEST has {}".format(*channels))
    unknown = np.setdiff1d(test.labels, train.labels)
    if unknown.size:
        raise DataCorrupt(f"classes without a training series: {', '.join(unknown)}")


def moments(data: CleanSet, rows: Ints | None = None) -> tuple[Floats, Floats]:
    """(C,) mean and standard deviation (ddof 1) of the channels over the steps of some series."""
    rows = np.arange(len(data.series)) if rows is None else rows
    steps = data.series[rows][data.inside()[rows]]
    with np.errstate(all="ignore"):
        known = np.isfinite(steps)
        count = known.sum(axis=0)
        mean = np.where(known, steps, 0.0).sum(axis=0) / count
        sd = np.sqrt((np.where(known, steps - mean, 0.0) ** 2).sum(axis=0) / (count - 1))
    return np.nan_to_num(mean), np.nan_to_num(sd)


def published_splits(train: CleanSet, test: CleanSet, *, instance_norm: bool) -> dict[str, Split]:
    """`train` and `test` as TSLib's loader gives them; see the README for what is wrong with it.

    Each file is standardised by its own moments, labels are ranks within their file, and the
    common length is that of the longest series of both files.
    """
    length = max(train.series.shape[1], test.series.shape[1])
    splits = {}
    for name, data in (("train", train), ("test", test)):
        mean, sd = moments(data)
        series = (data.series - mean) / (sd + np.finfo(np.float64).eps)
        if instance_norm:
            series = series - _mean_over_time(series, data.inside())
            series = series / np.sqrt(series.var(axis=2, keepdims=True) + 1e-5)
        labels = np.unique(data.labels, return_inverse=True)[1]
        splits[name] = _padded(series, data, labels, length)
    return splits


def holdout_splits(
    train: CleanSet,
    test: CleanSet,
    training: Ints,
    validation: Ints,
    *,
    instance_norm: bool,
) -> dict[str, Split]:
    """`train`, `val` (unless empty) and `test`, prepared with nothing but the training part.

    Args:
        train: the TRAIN file.
        test: the TEST file.
        training: rows of `train` that are trained on.
        validation: rows of `train` that select the epoch.
        instance_norm: per series and channel, over time.

    Raises:
        DataCorrupt: see :func:`refuse_mismatch`.
    """
    assert not np.intersect1d(training, validation).size, "a series is in two splits"
    refuse_mismatch(train, test)
    mean, sd = moments(train, training)
    sd = np.where(sd < CONSTANT_SD, 1.0, sd)
    classes, codes = np.unique(train.labels, return_inverse=True)
    test_codes = np.searchsorted(classes, test.labels)
    parts: dict[str, Split] = {}
    for name, data, labels in (("train", train, codes), ("test", test, test_codes)):
        series = (data.series - mean) / sd
        if instance_norm:
            inside = data.inside()
            series = series - _mean_over_time(series, inside)
            series = series / np.sqrt(_mean_over_time(series**2, inside) + 1e-5)
        parts[name] = _padded(series, data, labels, data.series.shape[1])
    splits = {"train": _take(parts["train"], training)}
    if validation.size:
        splits["val"] = _take(parts["train"], validation)
    splits["test"] = parts["test"]
    return splits


def stratified_part(labels: NDArray[np.str_], share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows of a training and a validation part, both sorted.

    Every class gives its rounded share, at least one series and never all of them; a class with
    a single series stays in training.
    """
    chosen = [
        rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]
        for rows in _shuffled_classes(labels, seed, "validation")
    ]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def stratified_folds(labels: NDArray[np.str_], folds: int, seed: int) -> Ints:
    """(n,) fold of every row. Classes are dealt one after the other, so sizes differ by one."""
    order = np.concatenate(_shuffled_classes(labels, seed, "folds"))
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold


def fingerprint(parts: Mapping[str, CleanSet]) -> str:
    """`sha256:...` of values, lengths and labels before any split: equal for all seeds."""
    digest = hashlib.sha256()
    for name, part in sorted(parts.items()):
        digest.update(f"{name}{part.series.shape}{','.join(part.labels)}".encode())
        digest.update(part.lengths.tobytes())
        # + 0.0 turns -0.0 into 0.0; NaN has one representation here.
        digest.update((np.nan_to_num(part.series) + 0.0).tobytes())
    return f"sha256:{digest.hexdigest()}"


def shared_series(train: CleanSet, test: CleanSet) -> int:
    """Number of test series that are, value for value, also training series."""
    known = {_content(train, row) for row in range(len(train.series))}
    return sum(_content(test, row) in known for row in range(len(test.series)))


def _content(data: CleanSet, row: int) -> bytes:
    return hashlib.sha256(data.series[row, : data.lengths[row]].tobytes()).digest()


def _shuffled_classes(labels: NDArray[np.str_], seed: int, purpose: str) -> list[Ints]:
    rng = np.random.default_rng(derive(seed, purpose))
    return [rng.permutation(np.flatnonzero(labels == name)) for name in np.unique(labels)]


def _mean_over_time(series: Floats, inside: NDArray[np.bool_]) -> Floats:
    total = np.where(inside[..., None], series, 0.0).sum(axis=1, keepdims=True)
    mean: Floats = total / inside.sum(axis=1)[:, None, None]
    return mean


def _padded(series: Floats, data: CleanSet, labels: Ints, length: int) -> Split:
    """float32 series with zeros where there is no value, `length` steps long."""
    out = np.zeros((len(series), length, series.shape[2]), np.float32)
    values = np.where(data.inside()[..., None], np.nan_to_num(series), 0.0)
    out[:, : series.shape[1]] = values
    return Split(out, data.lengths, labels)


def _take(split: Split, rows: Ints) -> Split:
    return Split(split.series[rows], split.lengths[rows], split.labels[rows])
