"""Training and evaluation on graphs.

A batch, as the loaders of this domain give it, is an object with these attributes (N nodes, E
edges, B graphs; F, G, T columns):

    x             (N, F) int64, or float32 where features are float
    edge_index    (2, E) int64, sources, then targets
    edge_attr     (E, G) int64 or float32; absent where edges carry nothing
    batch, ptr    (N,) int64 graph of each node, rising; (B + 1,) int64 first node of each, then N
    num_graphs    B
    split         `train`, `val` or `test`
    y             (B, T) float32, (B,) int64 or (N,) int64, as the task wants it; NaN: not known
    rwse          (N, steps) float32, where they are prepared
    lap_vectors   (N, pairs) float32, where they are prepared; NaN: the graph has fewer
    lap_values    (N, pairs) float32, the same for all nodes of a graph

and for contacts instead of `y`:

    contacts      (2, C) int64 true contacts, both directions
    contact_graph (C,) int64 graph of each contact
    pairs         (2, P) int64 contacts and drawn negatives
    pair_label    (P,) float32, 1 for contacts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domains.base import BenchmarkModule
from domains.contract import RecipeConfig
from domains.graph.config import DatasetConfig
from domains.graph.losses import binary_cross_entropy, class_weights, weighted_cross_entropy
from domains.graph.metrics import Score, make_score
from domains.graph.parts import take_graphs

SPLITS = ("train", "val", "test")


def task_loss(task: str, output: Tensor, batch: Any) -> Tensor:
    """Loss of a batch, a scalar.

    Args:
        task: see :class:`~domains.graph.config.DatasetConfig`.
        output: what the model gives.
        batch: see the head of this module.
    """
    match task:
        case "graph_regression":
            return F.l1_loss(output, batch.y)
        case "graph_classification":
            return F.cross_entropy(output, batch.y)
        case "node_classification":
            return weighted_cross_entropy(output, batch.y, getattr(batch, "whole_y", None))
        case "multilabel":
            return binary_cross_entropy(output, batch.y)
    first, second = output[batch.pairs[0]], output[batch.pairs[1]]
    return F.binary_cross_entropy_with_logits((first * second).sum(1), batch.pair_label)


class GraphModule(BenchmarkModule):
    """Logs `SPLIT/loss` and what the set's score computes, once an epoch.

    On the training split both come from the predictions as they were made while training; there
    contacts are not ranked. The loss of a split is the mean of those of its batches, weighted by
    their graphs, nodes or pairs.

    Args:
        net: gives the task's output for a batch.
        recipe: see :class:`BenchmarkModule`.
        dataset: task and metric.
    """

    def __init__(self, net: nn.Module, recipe: RecipeConfig, dataset: DatasetConfig) -> None:
        super().__init__(net, recipe)
        self.task, self.classes = dataset.task, dataset.classes
        self.train_score, self.val_score, self.test_score = (
            SplitScore(dataset, split) for split in SPLITS
        )

    def loss(self, batch: Any) -> Tensor:
        return task_loss(self.task, self.net(batch), batch)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        # Lightning converts a batch to the precision of the run, but looks into no graphs.
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        return batch.apply(lambda t: t.to(self.dtype) if t.is_floating_point() else t)

    def samples(self, batch: Any) -> int:
        return int(batch.num_graphs)

    def part(self, batch: Any, begin: int, end: int) -> Any:
        return take_graphs(batch, begin, end)

    def terms(self, batch: Any) -> float:
        match self.task:
            case "node_classification" if self.classes and self.classes > 2:
                whole = getattr(batch, "whole_y", batch.y)
                weights = class_weights(whole, self.classes, torch.float64)
                return float(weights[batch.y].sum())
            case "multilabel":
                return float((~batch.y.isnan()).sum())
            case "contact":
                return float(batch.pairs.shape[1])
        return float(batch.y.numel())

    def on_train_epoch_start(self) -> None:
        self._score("train").reset()

    def epoch_sums(self) -> dict[str, Any]:
        return self.train_score.sums()

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        self.train_score.load_sums(sums)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.net(batch)
        loss = task_loss(self.task, output, batch)
        if self.counts:
            self._score("train").update(output.detach(), loss.detach(), batch)
        if self.trainer.is_last_batch:
            # Here and not at the epoch's end: callbacks that read it then come before the module.
            self._log_scores("train")
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self._log_scores("val", "test")

    def on_test_epoch_end(self) -> None:
        self._log_scores("val", "test")

    def _evaluate(self, batch: Any) -> None:
        output = self.net(batch)
        loss = task_loss(self.task, output, batch)
        self._score(batch.split).update(output, loss, batch)

    def _log_scores(self, *splits: str) -> None:
        for split in splits:
            score = self._score(split)
            if score.rows:
                if split == "train" and self.devices > 1:
                    score.gather(self.over_devices)
                values = score.compute()
                for name, value in values.items():
                    self.log(
                        f"{split}/{name}", value.float(), on_step=False, on_epoch=True, batch_size=1
                    )
            score.reset()

    def _score(self, split: str) -> SplitScore:
        scores = (self.train_score, self.val_score, self.test_score)
        return dict(zip(SPLITS, scores, strict=True))[split]


class SplitScore(nn.Module):
    """Loss and score of one split since the last reset."""

    def __init__(self, dataset: DatasetConfig, split: str) -> None:
        super().__init__()
        ranked_in_training = dataset.task == "contact" and split == "train"
        self.score: Score | None = None if ranked_in_training else make_score(dataset)
        self.task = dataset.task
        self.total: Tensor | float = 0.0
        self.rows = 0

    def update(self, output: Tensor, loss: Tensor, batch: Any) -> None:
        """Add a batch: what the model gave for it and what its loss was."""
        rows = batch.pairs.shape[1] if self.task == "contact" else len(batch.y)
        self.total = self.total + rows * loss.double()
        self.rows += rows
        if self.score is not None:
            self.score.update(output, batch)

    def sums(self) -> dict[str, Any]:
        """All that was added, as plain values and tensors."""
        score = {} if self.score is None else self.score.sums()
        return {"total": self.total, "rows": self.rows, "score": score}

    def load_sums(self, sums: Mapping[str, Any]) -> None:
        """Go on from what :meth:`sums` gave."""
        self.total, self.rows = sums["total"], sums["rows"]
        if self.score is not None:
            self.score.load_sums(sums["score"])

    def gather(self, over_devices: Callable[[Tensor | float], Tensor]) -> None:
        """Take in what the other devices have seen of the split, each a part of it."""
        self.total, self.rows = over_devices(self.total), int(over_devices(self.rows))
        if self.score is not None:
            self.score.gather()

    def compute(self) -> dict[str, Tensor]:
        """Values by name without split."""
        values = {} if self.score is None else self.score.compute()
        return {**values, "loss": torch.as_tensor(self.total / self.rows)}

    def reset(self) -> None:
        """Forget everything."""
        self.total, self.rows = 0.0, 0
        if self.score is not None:
            self.score.reset()
