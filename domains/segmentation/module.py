"""Training and evaluation of Segmenter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from domains.base import BenchmarkModule
from domains.segmentation.batch import CLEAN, IGNORED, Batch, EvaluationPicture
from domains.segmentation.config import SegmentationRecipe
from domains.segmentation.loss import pixel_cross_entropy
from domains.segmentation.metrics import Condition, Confusions, Scores
from domains.segmentation.model import Segmenter
from domains.segmentation.sliding import predict

UNCHANGED: Condition = (CLEAN, 0)


class SegmentationModule(BenchmarkModule):
    """Mean cross-entropy of the labelled pixels of a batch.

    Logs `train/loss` and `val/miou` once an epoch, both of single-scale pictures. A test logs
    `test/miou`, `test/macc`, `test/aacc` and `test/miou_majority` of the clean pictures and, where
    corrupted ones are scored, what :func:`corrupted_scores` makes of them.

    Args:
        net: the model.
        recipe: see :class:`BenchmarkModule`.
        classes: number of classes.
        window: side of the sliding window of the evaluation.
        stride: from one window of a test to the next; `val` has them side by side.
        mirrored: whether tests score mirrored pictures as well.
        preset: name of the set of corruptions, `none` without one.
        corrupted: its corruptions and severities.
    """

    net: Segmenter
    recipe: SegmentationRecipe
    loss_sum: Tensor

    def __init__(
        self,
        net: Segmenter,
        recipe: SegmentationRecipe,
        *,
        classes: int,
        window: int,
        stride: int,
        mirrored: bool,
        preset: str,
        corrupted: Sequence[Condition],
    ) -> None:
        super().__init__(net, recipe)
        self.window, self.stride, self.mirrored = window, stride, mirrored
        self.preset = preset
        self.val_counts = Confusions([UNCHANGED], classes)
        self.test_counts = Confusions([UNCHANGED, *corrupted], classes)
        self.register_buffer("loss_sum", torch.zeros(()), persistent=False)
        self.num_seen = 0

    def loss(self, batch: Batch) -> Tensor:
        return pixel_cross_entropy(self.net(batch.images), batch.masks, self.net.patch)

    def terms(self, batch: Batch) -> float:
        """Labelled pixels."""
        return float((batch.masks != IGNORED).sum())

    def on_train_epoch_start(self) -> None:
        self.loss_sum.zero_()
        self.num_seen = 0

    def epoch_sums(self) -> dict[str, Any]:
        return {"loss_sum": self.loss_sum, "num_seen": self.num_seen}

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        self.loss_sum.copy_(sums["loss_sum"])
        self.num_seen = sums["num_seen"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.loss_sum += loss.detach() * self.share
        self.num_seen += 1
        if self.trainer.is_last_batch:
            # Here and not at the epoch's end: callbacks that read it then come before the module.
            mean = self.over_devices(self.loss_sum).float() / self.num_seen
            self.log("train/loss", mean, on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: EvaluationPicture, batch_idx: int) -> None:
        found = self.predict(batch, stride=self.window, mirrored=False)
        self.val_counts.update(found, batch.masks[0], UNCHANGED)

    def on_validation_epoch_end(self) -> None:
        self.log("val/miou", self.val_counts.scores()[UNCHANGED].miou)
        self.val_counts.reset()

    def test_step(self, batch: EvaluationPicture, batch_idx: int) -> None:
        found = self.predict(batch, stride=self.stride, mirrored=self.mirrored)
        self.test_counts.update(found, batch.masks[0], (batch.corruption, batch.severity))

    def on_test_epoch_end(self) -> None:
        scores = self.test_counts.scores()
        clean = scores.pop(UNCHANGED)
        found = {
            "test/miou": clean.miou,
            "test/macc": clean.macc,
            "test/aacc": clean.aacc,
            "test/miou_majority": clean.majority_miou,
            **corrupted_scores(self.preset, scores),
        }
        for name, value in found.items():
            self.log(name, value)
        self.test_counts.reset()

    def predict(self, picture: EvaluationPicture, *, stride: int, mirrored: bool) -> Tensor:
        """Class of every pixel of a picture at its original size, (H0, W0) int64."""
        height, width = picture.masks.shape[1:]
        return predict(
            self.net,
            picture.images,
            window=self.window,
            stride=stride,
            size=(height, width),
            mirrored=mirrored,
        )


def corrupted_scores(preset: str, scores: Mapping[Condition, Scores]) -> dict[str, float]:
    """Metrics of corrupted pictures, named after the set of corruptions that they are of.

    `test/miou_PRESET` is the mean over types of the mean over severities of the mIoU;
    `test/miou_PRESET_TYPE` one of these means over severities.

    Args:
        preset: name of the set.
        scores: by type and severity.
    """
    by_type: dict[str, list[float]] = {}
    for (corruption, _), found in scores.items():
        by_type.setdefault(corruption, []).append(found.miou)
    if not by_type:
        return {}
    means = {corruption: fmean(values) for corruption, values in by_type.items()}
    return {
        f"test/miou_{preset}": fmean(means.values()),
        **{f"test/miou_{preset}_{corruption}": mean for corruption, mean in means.items()},
    }
