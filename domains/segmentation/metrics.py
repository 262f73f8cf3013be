"""Scores of a segmentation from counts of pixels.

Counts of all pictures are added before anything is divided: a mean of scores of single pictures,
or of batches, is another and wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from domains.segmentation.batch import IGNORED

Condition = tuple[str, int]
"""Corruption and severity that pictures were seen under."""


@dataclass(frozen=True)
class Scores:
    """Percentages of one set of pictures.

    Attributes:
        miou: mean over classes of intersection over union; classes that are neither there nor
            predicted are left out.
        macc: mean over classes of the share of their pixels that was found; classes that are not
            there are left out.
        aacc: share of all pixels that was found.
        majority_miou: `miou` of always predicting the class with the most pixels.
    """

    miou: float
    macc: float
    aacc: float
    majority_miou: float


def scores_of(counts: Tensor) -> Scores:
    """Scores from counts.

    Args:
        counts: (K, K) int64 pixels; rows are true classes, columns predicted ones.

    Source: open-mmlab/mmsegmentation, `mmseg/evaluation/metrics/iou_metric.py`.
    """
    counts = counts.double()
    found, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    miou = (found / (true + predicted - found)).nanmean()
    macc = (found / true).nanmean()
    aacc = found.sum() / true.sum()
    # The class that is always predicted has all pixels for its union, all others have no hit.
    majority = true.max() / true.sum() / (true > 0).sum()
    miou, macc, aacc, majority = (100.0 * float(x) for x in (miou, macc, aacc, majority))
    return Scores(miou, macc, aacc, majority)


class Confusions(Metric):
    """Counts of pixels by condition, true class and predicted class, added over processes.

    Args:
        conditions: under which pictures are scored.
        classes: number of classes.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, conditions: Sequence[Condition], classes: int) -> None:
        super().__init__()
        self.rows = {condition: row for row, condition in enumerate(conditions)}
        self.classes = classes
        empty = torch.zeros(len(conditions), classes, classes, dtype=torch.int64)
        self.add_state("counts", empty, dist_reduce_fx="sum")

    def update(self, predicted: Tensor, mask: Tensor, condition: Condition) -> None:
        """Count a picture.

        Args:
            predicted: (H, W) int64 classes.
            mask: (H, W) int64 classes; `IGNORED` pixels do not count.
            condition: that it was seen under.
        """
        real = mask != IGNORED
        pairs = mask[real] * self.classes + predicted[real]
        counted = torch.bincount(pairs, minlength=self.classes**2)
        self.counts[self.rows[condition]] += counted.view(self.classes, self.classes)

    def compute(self) -> Tensor:
        """(conditions, K, K) counts of all processes."""
        return self.counts

    def scores(self) -> dict[Condition, Scores]:
        """Scores of every condition under which pixels were counted, in all processes."""
        counts: Tensor = self.compute()
        return {
            condition: scores_of(counts[row])
            for condition, row in self.rows.items()
            if counts[row].any()
        }
