"""Streams of tokens as batches: columns side by side, read in consecutive segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from domains.language.vocabulary import Tokens


@dataclass
class Batch:
    """A segment of every column.

    Attributes:
        inputs: (B, L) int64.
        targets: (B, L) int64, the tokens one later.
        split: `train` or `val`.
        reset: whether the columns begin here: what is remembered belongs to another place.
    """

    inputs: Tensor
    targets: Tensor
    split: str
    reset: bool


class Segments(Dataset[Batch]):
    """A stream cut into equally long columns; an index gives a segment of all of them.

    The remainder of the stream is dropped, and the last segment is shorter than the others: as in
    `LMOrderedIterator` of Transformer-XL (`pytorch/data_utils.py` of kimiyoung/transformer-xl at
    44781ed). The first token of a column is no target.

    Args:
        split: name of the stream.
        stream: (n,) tokens, possibly mapped from a file.
        columns: rows of a batch.
        length: tokens of a segment.

    Raises:
        ValueError: the stream has fewer than two tokens a column.
    """

    def __init__(self, split: str, stream: Tokens, *, columns: int, length: int) -> None:
        self.split = split
        self.steps = len(stream) // columns
        self.length = length
        if self.steps < 2:
            raise ValueError(
                f"'{split}' has {len(stream)} tokens, too few for {columns} columns of at least 2; "
                "lower recipe.batch_size (training) or recipe.evaluation_batch"
            )
        self.columns = stream[: columns * self.steps].reshape(columns, self.steps)

    def __len__(self) -> int:
        return -(-(self.steps - 1) // self.length)

    def __getitem__(self, number: int) -> Batch:
        start = number * self.length
        piece = self.columns[:, start : start + self.length + 1]
        tokens = torch.from_numpy(piece.astype(np.int64))
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return Batch(inputs, targets, self.split, reset=number == 0)


class EndlessOrder(Sampler[int]):
    """Numbers of the segments that an epoch reads: the next `steps`, from the start after the end.

    Args:
        segments: in one pass through the stream.
        steps: in an epoch.
        epoch: the one that is read first.
    """

    def __init__(self, segments: int, steps: int, epoch: int = 0) -> None:
        self.segments = segments
        self.steps = steps
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.steps
        return (step % self.segments for step in range(first, first + self.steps))

    def __len__(self) -> int:
        return self.steps
