"""The training loss of an epoch, as several domains log it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from domains.base import BenchmarkModule
from domains.contract import RecipeConfig


class MeanLossModule(BenchmarkModule):
    """Logs `train/loss` once an epoch: the mean over the terms of its batches as they were trained.

    Args:
        net: see :class:`BenchmarkModule`.
        recipe: see :class:`BenchmarkModule`.
    """

    loss_sum: Tensor

    def __init__(self, net: nn.Module, recipe: RecipeConfig) -> None:
        super().__init__(net, recipe)
        self.register_buffer("loss_sum", torch.zeros(()), persistent=False)
        self.num_seen = 0.0

    def on_train_epoch_start(self) -> None:
        self.loss_sum.zero_()
        self.num_seen = 0.0

    def epoch_sums(self) -> dict[str, Any]:
        return {"loss_sum": self.loss_sum, "num_seen": self.num_seen}

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        self.loss_sum.copy_(sums["loss_sum"])
        self.num_seen = sums["num_seen"]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if self.counts:
            terms = self.terms(batch)
            self.loss_sum += loss.detach() * terms
            self.num_seen += terms
        if self.trainer.is_last_batch:
            # Here and not at the epoch's end: callbacks that read it then come before the module.
            mean = self.loss_sum / self.num_seen
            if self.devices > 1:
                mean = self.over_devices(self.loss_sum) / self.over_devices(self.num_seen)
            self.log("train/loss", mean, on_step=False, on_epoch=True, batch_size=1)
        return loss
