"""Samplers whose order is a pure function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from domains.common.seeds import derive


class ShuffledBatches(Sampler[Tensor]):
    """Yields each index once an epoch, in shuffled batches of int64 index tensors.

    For `DataLoader(dataset, sampler=..., batch_size=None)` over a dataset that is indexed by a
    tensor. The last batch may be smaller. The order depends on nothing but `seed` and the epoch
    that was set, so a resumed run sees what an uninterrupted one sees, and all variants see the
    same.

    Args:
        size: number of samples.
        batch_size: samples a batch.
        seed: of the run.
        epoch: the one that is read first.
    """

    def __init__(self, size: int, batch_size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch that is read next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
        return iter(torch.split(torch.randperm(self.size, generator=generator), self.batch_size))

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)


class SequentialBatches(Sampler[Tensor]):
    """Yields each index once, in order, in batches of int64 index tensors."""

    def __init__(self, size: int, batch_size: int) -> None:
        self.size = size
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(torch.arange(self.size), self.batch_size))

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)
