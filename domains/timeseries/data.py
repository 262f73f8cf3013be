"""Batches of a UEA set: resident on the device, indexed by tensors, no loader processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from domains.base import BenchmarkData
from domains.common.samplers import Remaining, SequentialBatches, ShuffledBatches
from domains.contract import DataInfo, Phase
from domains.timeseries.prepare import (
    CleanSet,
    Split,
    clean,
    fingerprint,
    holdout_splits,
    published_splits,
    refuse_mismatch,
    shared_series,
    stratified_folds,
    stratified_part,
)
from domains.timeseries.sources import LoadedSet

EVAL_TOKENS = 4096
"""Steps in an evaluation batch: small enough for a cache. Results do not depend on it."""


class Batch(NamedTuple):
    """Series of one split.

    Attributes:
        series: (B, L, C) float32.
        lengths: (B,) int64 real steps, None if all series are L long.
        labels: (B,) int64.
        split: `train`, `val` or `test`.
    """

    series: Tensor
    lengths: Tensor | None
    labels: Tensor
    split: str


class ResidentSplit(Dataset[Batch]):
    """A split held as three tensors; an index tensor gives a batch.

    Args:
        name: of the split.
        split: the prepared arrays.
        crop: pad to the longest series of the batch instead of the longest of all.
    """

    def __init__(self, name: str, split: Split, *, crop: bool) -> None:
        self.name = name
        self.crop = crop
        self.host_lengths = torch.from_numpy(split.lengths)
        self.series = torch.from_numpy(split.series)
        self.lengths = self.host_lengths
        self.labels = torch.from_numpy(split.labels)

    def move(self, device: torch.device) -> None:
        """Hold the tensors on `device` from now on."""
        self.series = self.series.to(device)
        self.lengths = self.lengths.to(device)
        self.labels = self.labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Batch:
        # Lengths are looked at on the host: the device never has to wait for the answer.
        lengths = self.host_lengths[index]
        steps = int(lengths.max()) if self.crop else self.series.shape[1]
        equal = int(lengths.min()) == steps
        index = index.to(self.labels.device)
        return Batch(
            self.series[:, :steps][index],
            None if equal else self.lengths[index],
            self.labels[index],
            self.name,
        )


class TimeSeriesData(BenchmarkData):
    """Splits of one phase. Evaluates on `val`, where there is one, and `test` after each epoch.

    Args:
        splits: prepared arrays by name; `train` is trained on.
        evaluated: splits that are scored after each epoch.
        info: where they come from.
        batch_size: of training.
        seed: of the run; with the epoch it fixes the order of the training series.
        crop: see :class:`ResidentSplit`.
    """

    def __init__(
        self,
        splits: dict[str, Split],
        evaluated: tuple[str, ...],
        info: DataInfo,
        *,
        batch_size: int,
        seed: int,
        crop: bool,
    ) -> None:
        super().__init__()
        self.info = info
        self.splits = {n: ResidentSplit(n, split, crop=crop) for n, split in splits.items()}
        self.evaluated = evaluated
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage: str) -> None:
        if self.trainer is not None:
            for split in self.splits.values():
                split.move(self.trainer.strategy.root_device)

    def train_dataloader(self) -> DataLoader[Batch]:
        split = self.splits["train"]
        order = ShuffledBatches(len(split), self.batch_size, self.seed, self.first_epoch)
        return self._loader(split, Remaining(order, self.first_epoch, self.first_batch))

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        return [self._evaluation_loader(name) for name in self.evaluated]

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation_loader("test")

    def _evaluation_loader(self, name: str) -> DataLoader[Batch]:
        split = self.splits[name]
        size = max(1, EVAL_TOKENS // split.series.shape[1])
        return self._loader(split, SequentialBatches(len(split), size))

    def _loader(self, split: ResidentSplit, sampler: Any) -> DataLoader[Batch]:
        # Own generator: a loader draws a number at the start of each epoch, and taken from the
        # global stream it would move the dropout masks.
        generator = torch.Generator().manual_seed(0)
        return DataLoader(split, batch_size=None, sampler=sampler, generator=generator)


def build(cfg: Any, phase: Phase, loaded: LoadedSet) -> TimeSeriesData:
    """Data of a phase from parsed files.

    Under `holdout` the validation part and the folds are drawn from the run's seed alone: all
    variants under one seed select on the same series.

    Raises:
        DataCorrupt: the files do not belong together.
        ValueError: TRAIN is too small for the folds or the validation part that are asked for.
    """
    published = cfg.protocol == "tslib"
    train = clean(loaded.train, "train", halve=published)
    test = clean(loaded.test, "test", halve=published)
    refuse_mismatch(train, test)
    notes = [*loaded.notes, *train.notes, *test.notes]
    if shared := shared_series(train, test):
        notes.append(f"{shared} test series are training series too, value for value")
    if published:
        splits = published_splits(train, test, instance_norm=cfg.dataset.instance_norm)
        evaluated: tuple[str, ...] = ("test",)
    else:
        rows = _rows(cfg, phase, train)
        splits = holdout_splits(train, test, *rows, instance_norm=cfg.dataset.instance_norm)
        if not phase.test:
            del splits["test"]
        evaluated = tuple(name for name in ("val", "test") if name in splits)
        if cfg.dataset.instance_norm:
            notes.append("each series normalised by itself, per channel over time")
        if cfg.model.readout == "flat" and "test" in splits:
            splits["test"], cut = _cut(splits["test"], train.series.shape[1])
            if cut:
                notes.append(f"flat read-out: {cut} test series cut to the training length")
    sizes = {
        "channels": train.series.shape[2],
        "classes": len(np.unique(train.labels)),
        "length": splits["train"].series.shape[1],
        **{name: len(split.labels) for name, split in splits.items()},
    }
    info = DataInfo(
        kind=loaded.kind,
        version=cfg.dataset.version,
        fingerprint=fingerprint({"train": train, "test": test}),
        source=loaded.source,
        sizes=sizes,
        notes=tuple(notes),
    )
    return TimeSeriesData(
        splits,
        evaluated,
        info,
        batch_size=cfg.recipe.batch_size,
        seed=cfg.seed,
        crop=not published,
    )


def _rows(cfg: Any, phase: Phase, train: CleanSet) -> tuple[Any, Any]:
    """Rows of TRAIN that a phase trains on and selects on."""
    everything = np.arange(len(train.labels))
    part = phase.data.get("part", "validation")
    if part == "all":
        return everything, everything[:0]
    if part == "fold":
        if cfg.dataset.folds > len(everything):
            raise ValueError(
                f"dataset.folds={cfg.dataset.folds} must be at most the number of training "
                f"series, here {len(everything)}"
            )
        fold = stratified_folds(train.labels, cfg.dataset.folds, cfg.seed)
        inside = fold == phase.data["fold"]
        return everything[~inside], everything[inside]
    training, validation = stratified_part(train.labels, cfg.dataset.validation, cfg.seed)
    if not validation.size:
        raise ValueError(
            f"dataset={cfg.dataset.name}: every class has a single training series, so none is "
            "left for a validation part; choose the epoch by folds (dataset.folds=2 or more)"
        )
    return training, validation


def _cut(split: Split, length: int) -> tuple[Split, int]:
    """A split without the steps after `length`, and how many series were longer."""
    longer = int((split.lengths > length).sum())
    lengths = np.minimum(split.lengths, length)
    return Split(split.series[:, :length], lengths, split.labels), longer
