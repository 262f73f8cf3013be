"""The endless stream of turns that training crops are taken in."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from domains.common.seeds import derive

Turn = tuple[int, int]
"""A picture in the stream: how often all were seen before, and its number."""


class EndlessCrops(Sampler[list[Turn]]):
    """The turns of each batch of an epoch: the next of a stream that shuffles anew every pass.

    Batch b of epoch e holds turns (e * S + b) * B to (e * S + b + 1) * B - 1 of the stream, S being
    the steps of an epoch and B the batch size: the epochs of the engine are intervals between
    validations, not passes, and every batch is full.

    Args:
        pictures: in one pass.
        batch_size: turns a batch.
        steps: batches an epoch.
        seed: of the run.
        epoch: the one that is read first.
    """

    def __init__(
        self, pictures: int, batch_size: int, steps: int, seed: int, epoch: int = 0
    ) -> None:
        self.pictures = pictures
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Turn]]:
        turns = self._turns(self.epoch * self.steps * self.batch_size)
        for _ in range(self.steps):
            yield [next(turns) for _ in range(self.batch_size)]

    def _turns(self, first: int) -> Iterator[Turn]:
        done, skipped = divmod(first, self.pictures)
        while True:
            generator = torch.Generator().manual_seed(derive(self.seed, "order", done))
            order = torch.randperm(self.pictures, generator=generator).tolist()
            yield from ((done, number) for number in order[skipped:])
            done, skipped = done + 1, 0

    def __len__(self) -> int:
        return self.steps
