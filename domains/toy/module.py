"""Training and evaluation of the toy model, one run at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domains.contract import RecipeConfig
from domains.toy.data import Batch
from domains.toy.model import ToyTransformer
from domains.toy.outcomes import READINGS, readings
from domains.training_loss import MeanLossModule


class ToyModule(MeanLossModule):
    """Cross-entropy; accuracies in percent and readings of the attention.

    Logs once an epoch `train/loss`, the mean over the samples as they were trained on;
    `train/accuracy` and `test/accuracy` of the weights at the end of the epoch; and
    `probe/...` of the training samples, likewise at its end. Before the first step the
    same is read once and logged with the first epoch as `initial/...`.

    Args:
        net: gives logits from tokens.
        recipe: see :class:`BenchmarkModule`.
    """

    net: ToyTransformer

    def __init__(self, net: ToyTransformer, recipe: RecipeConfig) -> None:
        super().__init__(net, recipe)
        self.scores = Scores()
        self.initial: dict[str, float] = {}

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.tokens), batch.labels)

    def on_train_start(self) -> None:
        if self.trainer.global_step == 0:
            scores = Scores()
            data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
            with torch.no_grad():
                for batch in data.evaluation_loader("train"):
                    scores.look(self.net, batch)
            self.initial = {f"initial/{name}": value for name, value in scores.means().items()}

    def epoch_sums(self) -> dict[str, Any]:
        return {**super().epoch_sums(), "initial": self.initial}

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        super().load_epoch_sums(sums)
        self.initial = sums["initial"]

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        for name in READINGS:  # Lightning would repeat them in every epoch
            self.trainer.callback_metrics.pop(f"initial/{name}", None)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.scores.count(self.net, batch)
        if batch.split == "train":
            self.scores.look(self.net, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.scores.count(self.net, batch)

    def on_validation_epoch_end(self) -> None:
        means = {f"probe/{name}": value for name, value in self.scores.means().items()}
        self.log_dict({**self.scores.accuracies(), **means, **self.initial})
        self.initial = {}
        self.scores = Scores()

    def on_test_epoch_end(self) -> None:
        self.log_dict(self.scores.accuracies())
        self.scores = Scores()


class Scores:
    """Accuracies and readings, summed over the batches of an evaluation."""

    def __init__(self) -> None:
        self._right: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._sums = torch.zeros(len(READINGS), dtype=torch.float64)
        self._counts = torch.zeros(len(READINGS), dtype=torch.float64)

    def count(self, net: ToyTransformer, batch: Batch) -> None:
        """Add the right answers of a batch."""
        right = int((net(batch.tokens).argmax(-1) == batch.labels).sum())
        self._right[batch.split] = self._right.get(batch.split, 0) + right
        self._seen[batch.split] = self._seen.get(batch.split, 0) + len(batch.labels)

    def look(self, net: ToyTransformer, batch: Batch) -> None:
        """Add the readings of a batch."""
        sums, counts = readings(net.looks(batch.tokens), batch.positions, batch.biased)
        self._sums += sums.cpu()
        self._counts += counts.cpu()

    def accuracies(self) -> dict[str, float]:
        """`SPLIT/accuracy` in %."""
        return {
            f"{split}/accuracy": 100.0 * right / self._seen[split]
            for split, right in self._right.items()
        }

    def means(self) -> dict[str, float]:
        """Means of all readings; those of a kind that did not occur are left out."""
        means = (self._sums / self._counts).tolist()
        there = (self._counts > 0).tolist()
        return {name: m for name, m, some in zip(READINGS, means, there, strict=True) if some}
