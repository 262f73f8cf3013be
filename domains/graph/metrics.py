"""Scores of a split, gathered batch by batch and computed once over all of it.

Nothing of the size of a split is kept, except where the definition needs every prediction
(average precision). All but the ranking of contacts are defined over the predictions of the whole
split side by side.

Source of the definitions: rampasek/GraphGPS at 2801570, `graphgps/logger.py` and
`graphgps/metrics_ogb.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torchmetrics import MeanAbsoluteError, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.functional.classification import binary_average_precision

from domains.common.metric_states import load_states, states_of
from domains.graph.config import DatasetConfig
from domains.graph.ranking import Ranks, contact_ranks


class Score(nn.Module, ABC):
    """What all scores offer; `name` is the key of the primary value of :meth:`compute`."""

    name: str

    @abstractmethod
    def update(self, output: Tensor, batch: Any) -> None:
        """Add the model's output for a batch."""

    @abstractmethod
    def compute(self) -> dict[str, Tensor]:
        """Values since the last reset, by name without split."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    def sums(self) -> dict[str, Any]:
        """All that was added since the last reset, as tensors."""
        return states_of(self)

    def load_sums(self, sums: Mapping[str, Any]) -> None:
        """Go on from what :meth:`sums` gave."""
        load_states(self, sums)

    def gather(self) -> None:
        """Let the next :meth:`compute` take in what other devices have seen."""
        for child in self.modules():
            if isinstance(child, Metric):
                child.sync_on_compute = True


class MeanError(Score):
    """Mean absolute error over all entries of all targets."""

    name = "mae"

    def __init__(self) -> None:
        super().__init__()
        self.error = MeanAbsoluteError()

    def update(self, output: Tensor, batch: Any) -> None:
        self.error.update(output, batch.y)

    def compute(self) -> dict[str, Tensor]:
        return {self.name: self.error.compute()}

    def reset(self) -> None:
        self.error.reset()


class ClassScore(Score):
    """Accuracy or F1 of predicted classes, from counts by class.

    * `accuracy`, `micro`: share of right predictions, in percent.
    * `accuracy`, `macro`: mean over classes of the share of their members that is recognised, in
      percent. A class counts if it occurs in the labels or in the predictions.
    * `f1`: mean over such classes of the F1 score, 0 where it is undefined.

    Args:
        name: `accuracy` or `f1`.
        average: `micro` or `macro`.
        classes: number of classes; two of them may come as one logit.
    """

    def __init__(self, name: str, average: str, classes: int) -> None:
        super().__init__()
        self.name = name
        made: Any = MulticlassF1Score if name == "f1" else MulticlassAccuracy
        self.score = made(classes, average=average, validate_args=False)

    def update(self, output: Tensor, batch: Any) -> None:
        one_logit = output.shape[1] == 1
        predicted = (output[:, 0] > 0).long() if one_logit else output.argmax(1)
        self.score.update(predicted, batch.y)

    def compute(self) -> dict[str, Tensor]:
        value = self.score.compute()
        return {self.name: value if self.name == "f1" else 100.0 * value}

    def reset(self) -> None:
        self.score.reset()


class AveragePrecision(Score):
    """Mean over labels of the average precision of each; keeps all predictions.

    Entries without a target (NaN) are left out, and so are labels without a positive or without a
    negative.
    """

    name = "ap"

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []

    def update(self, output: Tensor, batch: Any) -> None:
        self.outputs.append(output.float().cpu())
        self.targets.append(batch.y.cpu())

    def compute(self) -> dict[str, Tensor]:
        outputs, targets = torch.cat(self.outputs), torch.cat(self.targets)
        return {self.name: average_precision(outputs, targets)}

    def sums(self) -> dict[str, Any]:
        return {"outputs": list(self.outputs), "targets": list(self.targets)}

    def load_sums(self, sums: Mapping[str, Any]) -> None:
        self.outputs, self.targets = list(sums["outputs"]), list(sums["targets"])

    def reset(self) -> None:
        self.outputs, self.targets = [], []

    def gather(self) -> None:
        seen: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(seen, (self.outputs, self.targets))
        self.outputs, self.targets = (
            [one for each in seen for one in each[part]] for part in range(2)
        )


def average_precision(outputs: Tensor, targets: Tensor) -> Tensor:
    """See :class:`AveragePrecision`; NaN if every label is left out.

    Args:
        outputs: (B, labels) float, higher is more likely.
        targets: (B, labels) float, 0 or 1, or NaN.
    """
    values = []
    for output, target in zip(outputs.unbind(1), targets.unbind(1), strict=True):
        known = ~target.isnan()
        truth = target[known].long()
        if 0 < truth.sum() < len(truth):
            # Logits between 0 and 1 would be taken as they are, others through a sigmoid that
            # makes different ones equal: only their order counts, so it is what is handed over.
            ranks = output[known].unique(return_inverse=True)[1].double()
            values.append(binary_average_precision(ranks / len(ranks), truth, validate_args=False))
    return torch.stack(values).mean() if values else torch.tensor(torch.nan)


class ContactRanking(Score):
    """Reciprocal ranks of true contacts, averaged in three uneven steps as published.

    Over the contacts of a graph; over the graphs of a batch, where one without contacts counts as
    0 in the raw numbers and is left out of the filtered ones; over batches, weighted by their
    number of labelled pairs. So the values depend on the batches. `mrr_per_contact`, the plain
    mean of the raw reciprocal ranks over all contacts, does not. `hits1`, `hits3` and `hits10` are
    shares of raw ranks up to so many, averaged as `mrr` is.
    """

    name = "mrr"

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def update(self, output: Tensor, batch: Any) -> None:
        ranks = contact_ranks(output, batch)
        contacts_of_graph = torch.bincount(batch.contact_graph, minlength=batch.num_graphs)
        ranked = contacts_of_graph > 0
        weight = batch.pairs.shape[1]
        for name, values in _graded(ranks).items():
            of_graph = torch.zeros(batch.num_graphs, device=values.device)
            of_graph = of_graph.index_add(0, batch.contact_graph, values)
            of_graph = of_graph / contacts_of_graph.clamp_min(1)
            if "filtered" in name:
                of_graph = of_graph[ranked]
            if len(of_graph):
                self._add(name, of_graph.mean(), weight)
        self._add("mrr_per_contact", ranks.raw.reciprocal().mean(), len(ranks.raw))

    def compute(self) -> dict[str, Tensor]:
        return {name: total / self._weights[name] for name, total in self._totals.items()}

    def reset(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._weights: dict[str, int] = {}

    def _add(self, name: str, mean: Tensor, weight: int) -> None:
        if weight:
            self._totals[name] = self._totals.get(name, 0.0) + weight * mean.double()
            self._weights[name] = self._weights.get(name, 0) + weight


def _graded(ranks: Ranks) -> dict[str, Tensor]:
    """(C,) what each contact contributes to each number."""
    graded = {
        "mrr": ranks.raw.reciprocal(),
        "mrr_filtered": ranks.filtered.reciprocal(),
        "mrr_filtered_noself": ranks.filtered_noself.reciprocal(),
    }
    return graded | {f"hits{k}": (ranks.raw <= k).float() for k in (1, 3, 10)}


def make_score(dataset: DatasetConfig) -> Score:
    """The score that a set's metric asks for."""
    match dataset.task:
        case "graph_regression":
            return MeanError()
        case "multilabel":
            return AveragePrecision()
        case "contact":
            return ContactRanking()
    assert dataset.classes is not None
    average = "micro" if dataset.task == "graph_classification" else "macro"
    return ClassScore(dataset.metric, average, dataset.classes)
