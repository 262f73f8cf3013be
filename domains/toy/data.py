"""Batches of the toy task: two splits held as tensors, indexed by tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from domains.base import BenchmarkData
from domains.common.samplers import Remaining, SequentialBatches, ShuffledBatches
from domains.contract import DataInfo, DataKind
from domains.toy.config import CHOICES
from domains.toy.generator import CLASSES, TRAIN_BIASED, WIDTH, Samples, draw, fingerprint

EVAL_BATCH = 250
"""Samples in an evaluation batch: small enough for a cache. Results do not depend on it."""

TINY = {"train": 64, "test": 32}
"""Samples of a smoke run."""


class Batch(NamedTuple):
    """Samples of one split.

    Attributes:
        tokens: (B, N, 20) float32.
        labels: (B,) int64.
        positions: (B,) int64 place of the answer.
        biased: (B,) bool.
        split: `train` or `test`.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    biased: Tensor
    split: str


class ResidentSplit(Dataset[Batch]):
    """A split held as tensors; an index tensor gives a batch."""

    def __init__(self, name: str, samples: Samples) -> None:
        self.name = name
        self.tokens = torch.from_numpy(samples.tokens)
        self.labels = torch.from_numpy(samples.labels)
        self.positions = torch.from_numpy(samples.positions)
        self.biased = torch.from_numpy(samples.biased)

    def move(self, device: torch.device) -> None:
        """Hold the tensors on `device` from now on."""
        for name in ("tokens", "labels", "positions", "biased"):
            setattr(self, name, getattr(self, name).to(device))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Batch:
        index = index.to(self.labels.device)
        return Batch(
            self.tokens[index],
            self.labels[index],
            self.positions[index],
            self.biased[index],
            self.name,
        )


class ToyData(BenchmarkData):
    """Both splits. Evaluates on the training samples and on the test samples after each epoch.

    Args:
        splits: `train` and `test`.
        info: where they come from.
        batch_size: of training.
        seed: of the data set; with the epoch it fixes the order of the training samples.
    """

    def __init__(
        self, splits: dict[str, Samples], info: DataInfo, *, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        self.info = info
        self.splits = {name: ResidentSplit(name, samples) for name, samples in splits.items()}
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage: str) -> None:
        if self.trainer is not None:
            for split in self.splits.values():
                split.move(self.trainer.strategy.root_device)

    def order(self, epoch: int) -> ShuffledBatches:
        """The training batches of an epoch, as indices."""
        return ShuffledBatches(len(self.splits["train"]), self.batch_size, self.seed, epoch)

    def train_dataloader(self) -> DataLoader[Batch]:
        order = self.order(self.first_epoch)
        return self._loader("train", Remaining(order, self.first_epoch, self.first_batch))

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        return [self.evaluation_loader(name) for name in ("train", "test")]

    def test_dataloader(self) -> DataLoader[Batch]:
        return self.evaluation_loader("test")

    def evaluation_loader(self, name: str) -> DataLoader[Batch]:
        """All samples of a split, in order."""
        return self._loader(name, SequentialBatches(len(self.splits[name]), EVAL_BATCH))

    def _loader(self, name: str, sampler: Any) -> DataLoader[Batch]:
        # Own generator: a loader draws a number at the start of each epoch, which must not come
        # from the global stream.
        generator = torch.Generator().manual_seed(0)
        return DataLoader(self.splits[name], batch_size=None, sampler=sampler, generator=generator)


def build(cfg: Any, *, tiny: bool) -> ToyData:
    """The data set of a configuration; `tiny` draws a few samples only."""
    config, choices = cfg.dataset, CHOICES[cfg.protocol]
    sizes = {"train": config.train, "test": config.test}
    if tiny:
        sizes = {name: min(size, TINY[name]) for name, size in sizes.items()}
    splits = {
        "train": draw(
            config.seed,
            "train",
            sizes["train"],
            config.length,
            positions="normal",
            biased=TRAIN_BIASED,
        ),
        "test": draw(
            config.seed,
            "test",
            sizes["test"],
            config.length,
            positions=choices.test_positions,
            biased=choices.test_biased,
        ),
    }
    kind: DataKind = "synthetic" if tiny else "regenerated"
    info = DataInfo(
        kind=kind,
        version=config.version,
        fingerprint=fingerprint(splits),
        source="the generator described in arXiv 2604.00199, appendix A.3",
        sizes={**sizes, "length": config.length, "width": WIDTH, "classes": CLASSES},
    )
    return ToyData(splits, info, batch_size=cfg.recipe.batch_size, seed=config.seed)
