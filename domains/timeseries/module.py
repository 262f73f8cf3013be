"""Training and evaluation of the time-series classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from domains.base import BenchmarkModule
from domains.contract import RecipeConfig
from domains.timeseries.data import Batch


class TimeSeriesModule(BenchmarkModule):
    """Cross-entropy without class weights, accuracy in percent.

    Logs `train/loss`, and for every split that is evaluated `SPLIT/accuracy` and `SPLIT/loss`, as
    means over series, once an epoch.

    Args:
        net: gives logits (B, classes) from series and lengths.
        recipe: see :class:`BenchmarkModule`.
        classes: number of classes.
    """

    loss_sum: Tensor

    def __init__(self, net: nn.Module, recipe: RecipeConfig, classes: int) -> None:
        super().__init__(net, recipe)
        self.val_score = SplitScore(classes)
        self.test_score = SplitScore(classes)
        self.register_buffer("loss_sum", torch.zeros(()), persistent=False)
        self.num_seen = 0

    def on_train_epoch_start(self) -> None:
        self.loss_sum.zero_()
        self.num_seen = 0

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.series, batch.lengths), batch.labels)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if self.counts:
            self.loss_sum += loss.detach() * len(batch.labels)
            self.num_seen += len(batch.labels)
        if self.trainer.is_last_batch:
            # Here and not at the epoch's end: callbacks that read it then come before the module.
            mean = self.loss_sum / self.num_seen
            if self.devices > 1:
                mean = self.over_devices(self.loss_sum) / self.over_devices(self.num_seen)
            self.log("train/loss", mean, on_step=False, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._score(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._score(batch)

    def on_validation_epoch_end(self) -> None:
        self._log_scores()

    def on_test_epoch_end(self) -> None:
        self._log_scores()

    def _score(self, batch: Batch) -> None:
        score = self.val_score if batch.split == "val" else self.test_score
        score.update(self.net(batch.series, batch.lengths), batch.labels)

    def _log_scores(self) -> None:
        for split, score in (("val", self.val_score), ("test", self.test_score)):
            if score.seen:
                for name, value in score.compute().items():
                    self.log(f"{split}/{name}", value)
            score.reset()


class SplitScore(nn.Module):
    """Accuracy in percent and mean cross-entropy of a split, summed over series."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(classes, average="micro", validate_args=False)
        # The default strategy drops NaN, which would hide a run that has diverged. This one ignores
        # weights (torchmetrics 1.9), so it is given the loss of every series.
        self.loss = MeanMetric(nan_strategy="disable")

    @property
    def seen(self) -> bool:
        """Whether anything was scored since the last reset."""
        return self.loss.update_called

    def update(self, logits: Tensor, labels: Tensor) -> None:
        self.accuracy.update(logits, labels)
        self.loss.update(F.cross_entropy(logits, labels, reduction="none"))

    def compute(self) -> dict[str, Tensor]:
        return {"accuracy": 100.0 * self.accuracy.compute(), "loss": self.loss.compute()}

    def reset(self) -> None:
        self.accuracy.reset()
        self.loss.reset()
