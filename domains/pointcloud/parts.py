"""Scenes cut out of a batch, for several devices that share it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from domains.pointcloud.batch import Batch


@dataclass
class SharedBatch(Batch):
    """A device's scenes of a batch.

    Attributes:
        whole_label: (N,) int64 labels of the whole batch.
        first: number of points before these scenes.
    """

    whole_label: Tensor
    first: int

    def gathered(self, scores: Tensor) -> Tensor:
        """(N, classes) scores of the whole batch from those of each device's scenes.

        All devices call it. Gradients flow back to the device that a score is from, once for
        every device.
        """
        whole = scores.new_zeros(len(self.whole_label), scores.shape[1])
        own = torch.arange(len(scores), device=scores.device) + self.first
        summed: Tensor = all_reduce(whole.index_copy(0, own, scores))  # type: ignore[no-untyped-call]
        return summed


def take_scenes(batch: Batch, begin: int, end: int) -> SharedBatch:
    """Scenes `begin` to `end` - 1 of a training batch."""
    first = int(batch.offset[begin - 1]) if begin else 0
    points = slice(first, int(batch.offset[end - 1]))
    return SharedBatch(
        coord=batch.coord[points],
        grid=batch.grid[points],
        feat=batch.feat[points],
        label=batch.label[points],
        batch=batch.batch[points] - begin,
        offset=batch.offset[begin:end] - first,
        inverse=None,
        full_label=None,
        split=batch.split,
        whole_label=batch.label,
        first=first,
    )
