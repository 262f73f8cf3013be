"""Training and evaluation of the point-cloud network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from domains.base import BenchmarkModule, Rate, optimizer_of, parameter_rates
from domains.common.metric_states import load_states, states_of
from domains.common.seeds import derive
from domains.pointcloud.batch import AugmentedScene, Batch
from domains.pointcloud.config import CLASSES, OneCycleConfig, PointCloudRecipe
from domains.pointcloud.lovasz import cross_entropy, lovasz_softmax
from domains.pointcloud.metrics import SplitScore
from domains.pointcloud.parts import SharedBatch, take_scenes

BLOCKS = "blocks."
"""Part of the names of the parameters that learn at the blocks' rate."""


class PointCloudModule(BenchmarkModule):
    """Cross-entropy plus Lovász-Softmax, scored by IoU over all points of the files.

    Logs `train/loss`, and after each epoch `val/loss` and `val/NAME` for each NAME of
    :class:`SplitScore`. A test logs `val/NAME_PROTOCOL`.

    The turns of the orders come from generators of their own: in training they depend on the seed
    and the step, in evaluation on the seed alone, so that a scene's prediction does not depend on
    what it is batched with.

    Args:
        net: gives scores of a batch under given turns.
        recipe: see `PointCloudRecipe`.
        protocol: name of the evaluation, the end of the metrics' names.
        seed: of the run.
    """

    recipe: PointCloudRecipe

    def __init__(
        self, net: nn.Module, recipe: PointCloudRecipe, *, protocol: str, seed: int
    ) -> None:
        super().__init__(net, recipe)
        self.protocol = protocol
        self.seed = seed
        self.score = SplitScore()
        self.train_loss = SplitScore().loss
        self.scale: float | None = None

    def loss(self, batch: Batch) -> Tensor:
        scores = self.net(batch, self._draws("train", self.global_step))
        if isinstance(batch, SharedBatch):
            return self._loss(batch.gathered(scores), batch.whole_label)
        return self._loss(scores, batch.label)

    def samples(self, batch: Batch) -> int:
        """Scenes."""
        return len(batch.offset)

    def part(self, batch: Batch, begin: int, end: int) -> SharedBatch:
        return take_scenes(batch, begin, end)

    def terms(self, batch: Batch) -> float:
        """None: Lovász-Softmax is no mean, so every device computes the loss of all points."""
        return 0.0

    def epoch_sums(self) -> dict[str, Any]:
        return states_of(self.train_loss)

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        load_states(self.train_loss, sums)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        labels = batch.whole_label if isinstance(batch, SharedBatch) else batch.label
        self.train_loss.update(loss.detach(), len(labels))
        if self.trainer.is_last_batch:
            # Here and not at the epoch's end: callbacks that read it then come before the module.
            mean = self.train_loss.compute()
            self.log("train/loss", mean, on_step=False, on_epoch=True, batch_size=1)
            self.train_loss.reset()
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        scores = self.scores(batch)
        self.score.loss.update(self._loss(scores, batch.label), len(batch.label))
        self._count(scores.argmax(1), batch)

    def on_validation_epoch_end(self) -> None:
        self.log("val/loss", self.score.loss.compute())
        self._log_score("val/{}")

    def test_step(self, batch: Batch | AugmentedScene, batch_idx: int) -> None:
        if isinstance(batch, AugmentedScene):
            self._count(self.summed_probabilities(batch).argmax(1), batch)
        else:
            self._count(self.scores(batch).argmax(1), batch)

    def on_test_epoch_end(self) -> None:
        self._log_score(f"val/{{}}_{self.protocol}")

    def scores(self, batch: Batch, view: int = 0) -> Tensor:
        """(N, classes) scores in evaluation.

        Args:
            batch: scenes.
            view: number of the augmentation; each has its own turns.
        """
        scores: Tensor = self.net(batch, self._draws("val", view))
        return scores

    def summed_probabilities(self, scene: AugmentedScene) -> Tensor:
        """(thinned points, classes) sum over all parts of the probabilities of a point."""
        total = scene.inverse.new_zeros(scene.num_points, CLASSES, dtype=torch.float32)
        for view, (part, points) in enumerate(zip(scene.parts, scene.points, strict=True)):
            probability = self.scores(part, view).softmax(1, dtype=torch.float32)
            total.index_add_(0, points, probability)
        return total

    def configure_optimizers(self) -> Any:
        """AdamW, slower in the blocks, under the one-cycle schedule."""
        rates = block_rates(self.net, self.recipe)
        optimizer = optimizer_of(self.net, self.recipe.optimizer, rates)
        schedule = OneCycle(optimizer, self.recipe.schedule, self.schedule_length())
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_start(self) -> None:
        self.scale = self._loss_scale()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """The schedule waits where the loss scaler skipped the step, which lowers its scale."""
        before, self.scale = self.scale, self._loss_scale()
        if before is None or self.scale is None or self.scale >= before:
            scheduler.step()

    def _loss_scale(self) -> float | None:
        """None unless training is in float16."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return None if scaler is None else scaler.get_scale()

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(scores, labels) + lovasz_softmax(scores, labels)

    def _draws(self, split: str, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive(self.seed, "orders", split, number))

    def _count(self, prediction: Tensor, scenes: Batch | AugmentedScene) -> None:
        """Score points that were predicted, for all points that they stand for."""
        assert scenes.inverse is not None
        assert scenes.full_label is not None
        self.score.update(prediction[scenes.inverse], scenes.full_label)

    def _log_score(self, name: str) -> None:
        for key, value in self.score.compute().items():
            self.log(name.format(key), value.float(), on_epoch=True, batch_size=1)
        self.score.reset()


def block_rates(net: nn.Module, recipe: PointCloudRecipe) -> dict[str, Rate]:
    """Rate of every trainable parameter: that of the recipe, in the blocks a part of it.

    Source: `param_dicts` of the published configuration, whose keyword is "block".
    """
    rates = parameter_rates(net, recipe.optimizer, **recipe.qk_options)
    slower = recipe.block_lr_ratio
    return {
        name: replace(rate, lr=slower * rate.lr) if BLOCKS in name else rate
        for name, rate in rates.items()
    }


class OneCycle(LambdaLR):
    """Learning rate and beta1 of :class:`OneCycleConfig`, equal to torch's `OneCycleLR`.

    That one cannot be used: it divides by zero where the rise ends with the first step.

    Args:
        optimizer: of Adam's family.
        schedule: see above.
        total: steps of the fit.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, schedule: OneCycleConfig, total: int
    ) -> None:
        self.schedule, self.total = schedule, total
        super().__init__(optimizer, lambda step: schedule.factor(step, total))

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers alone: the configuration says the rest, and checkpoints hold no classes."""
        return {key: value for key, value in super().state_dict().items() if key != "schedule"}

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        for group in self.optimizer.param_groups:
            group["betas"] = (self.schedule.beta1(self.last_epoch, self.total), group["betas"][1])
