"""Training and evaluation of the time-series classifiers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from domains.contract import RecipeConfig
from domains.timeseries.data import Batch
from domains.training_loss import MeanLossModule


class TimeSeriesModule(MeanLossModule):
    """Cross-entropy without class weights, accuracy in percent.

    Logs `train/loss`, and for every split that is evaluated `SPLIT/accuracy` and `SPLIT/loss`, as
    means over series, once an epoch.

    Args:
        net: gives logits (B, classes) from series and lengths.
        recipe: see :class:`BenchmarkModule`.
        classes: number of classes.
    """

    def __init__(self, net: nn.Module, recipe: RecipeConfig, classes: int) -> None:
        super().__init__(net, recipe)
        self.val_score = SplitScore(classes)
        self.test_score = SplitScore(classes)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.series, batch.lengths), batch.labels)

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
