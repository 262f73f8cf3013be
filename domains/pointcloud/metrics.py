"""Intersection over union, from counts over a whole split."""

from __future__ import annotations

from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassConfusionMatrix

from domains.pointcloud.batch import IGNORED
from domains.pointcloud.classes import NAMES


class SplitScore(nn.Module):
    """IoU in percent of a split, and the mean loss of its batches, weighted by their points.

    Counted are points of the files, not voxels; ignored ones neither as truth nor as prediction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = MulticlassConfusionMatrix(
            len(NAMES), ignore_index=IGNORED, validate_args=False
        )
        self.loss = MeanMetric(nan_strategy="disable")

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add points.

        Args:
            prediction: (M,) int64 class.
            label: (M,) int64 class, or `IGNORED`.
        """
        self.counts.update(prediction, label)

    def compute(self) -> dict[str, Tensor]:
        """Values by name without split: `miou`, `accuracy`, `miou_majority`, `iou_CLASS`.

        A class that does not occur has no IoU and no part in the mean. `miou_majority` is what
        the best constant prediction has.
        """
        counts = self.counts.compute().double()
        hit, truth, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        present = truth > 0
        iou = 100.0 * hit[present] / (truth + predicted - hit)[present]
        total = truth.sum()
        values = {
            "miou": iou.mean(),
            "accuracy": 100.0 * hit.sum() / total,
            "miou_majority": 100.0 * truth.max() / total / present.sum(),
        }
        names = [NAMES[number] for number in present.nonzero().flatten().tolist()]
        return values | {f"iou_{name}": value for name, value in zip(names, iou, strict=True)}

    def reset(self) -> None:
        """Forget everything."""
        self.counts.reset()
        self.loss.reset()
