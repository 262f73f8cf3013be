"""Samplers whose order is a pure function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Sampler

from domains.common.seeds import derive

Drawn = TypeVar("Drawn")


class ShuffledBatches(Sampler[Tensor]):
    """Yields each index once an epoch, in shuffled batches of int64 index tensors.

    For `DataLoader(dataset, sampler=..., batch_size=None)` over a dataset that is indexed by a
    tensor. The last batch may be smaller, or is left out. The order depends on nothing but `seed`
    and the epoch that was set, so a resumed run sees what an uninterrupted one sees, and all
    variants see the same.

    Args:
        size: number of samples.
        batch_size: samples a batch.
        seed: of the run.
        epoch: the one that is read first.
        drop_last: whether a batch that would not be full is left out.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, epoch: int = 0, *, drop_last: bool = False
    ) -> None:
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = epoch
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch that is read next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
        order = torch.randperm(self.size, generator=generator)
        return iter(torch.split(order, self.batch_size)[: len(self)])

    def __len__(self) -> int:
        return (self.size if self.drop_last else self.size + self.batch_size - 1) // self.batch_size


class SequentialBatches(Sampler[Tensor]):
    """Yields each index once, in order, in batches of int64 index tensors."""

    def __init__(self, size: int, batch_size: int) -> None:
        self.size = size
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(torch.arange(self.size), self.batch_size))

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)


class Request(NamedTuple):
    """A batch that is asked for: which one it is, and the samples in it.

    Attributes:
        epoch: of training; 0 in evaluation.
        number: of the batch in its epoch.
        indices: (B,) int64.
    """

    epoch: int
    number: int
    indices: Tensor


class NumberedBatches(Sampler[Request]):
    """The batches of another sampler with their epoch and number.

    Args:
        batches: shuffled or sequential; what it is decides the order.
    """

    def __init__(self, batches: ShuffledBatches | SequentialBatches) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch that is read next; sequential batches have one order."""
        if isinstance(self.batches, ShuffledBatches):
            self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[Request]:
        epoch = self.batches.epoch if isinstance(self.batches, ShuffledBatches) else 0
        for number, indices in enumerate(self.batches):
            yield Request(epoch, number, indices)

    def __len__(self) -> int:
        return len(self.batches)


class Remaining(Sampler[Drawn]):
    """The batches of another sampler without the first ones of one epoch.

    With it in its training loader, a domain's stopped runs continue in the middle of an epoch.

    Args:
        batches: as a function of the epoch, which its `set_epoch` chooses.
        epoch: the one that is read first.
        batch: how many batches of that epoch are left out.
    """

    def __init__(self, batches: Any, epoch: int, batch: int) -> None:
        self.batches = batches
        self.epoch = epoch
        self._first = (epoch, batch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next."""
        self.epoch = epoch
        self.batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[Drawn]:
        epoch, batch = self._first
        return islice(self.batches, batch if self.epoch == epoch else 0, None)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.batches)


def made_up_batch(asked: int) -> int:
    """Samples in a batch of made-up data: up to three as asked for, else two.

    Three are what several devices cannot share evenly.
    """
    return asked if asked <= 3 else 2
