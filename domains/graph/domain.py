"""The graph domain: protocol, phase and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkModule, Domain
from domains.contract import DataSource, Metric, Phase, PhaseResult, Selection
from domains.graph import sources
from domains.graph.config import SPEC, DatasetConfig
from domains.graph.data import GraphData, build, model_sizes
from domains.graph.model import GPSModel
from domains.graph.module import GraphModule
from domains.graph.prepare import prepared_set
from domains.graph.tiny import tiny_set

DECIMALS = 5
"""Places of a fraction that the published code keeps before it compares epochs."""

UNITS = {"accuracy": "%"}
LOWER_IS_BETTER = ("mae",)


class GraphDomain(Domain):
    """GraphGPS on nine sets of graphs. See `domains/graph/README.md`."""

    name = "graph"
    summary = "prediction on graphs and their nodes with GPS (Benchmarking-GNNs, LRGB)"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        metric = cfg.dataset.metric
        higher, unit = metric not in LOWER_IS_BETTER, UNITS.get(metric, "")
        metrics = [Metric(f"test/{metric}", higher, unit, _meaning(cfg.dataset))]
        if metric == "mrr":
            metrics += [
                Metric("test/mrr_filtered", True, "", "other contacts left out"),
                Metric("test/mrr_filtered_noself", True, "", "these and the node itself left out"),
                Metric("test/mrr_per_contact", True, "", "raw, a plain mean over contacts"),
                *(
                    Metric(f"test/hits{k}", True, "", f"share of raw ranks up to {k}")
                    for k in (1, 3, 10)
                ),
            ]
        else:
            metrics.append(Metric(f"train/{metric}", higher, unit, "while training, chosen epoch"))
        return [
            *metrics,
            Metric(f"val/{metric}", higher, unit, "at the chosen epoch"),
            Metric("test/loss", False, "", "training loss on the test split"),
            Metric("train/epochs_selected", False, "", "epochs of training behind the result"),
        ]

    def require_data(self, cfg: Any) -> DataSource:
        return sources.require(cfg.dataset)

    def build_data(self, cfg: Any, phase: Phase) -> GraphData:
        return build(cfg, phase, prepared_set(cfg.dataset))

    def tiny(self, cfg: Any, phase: Phase) -> GraphData:
        return build(cfg, phase, tiny_set(cfg.dataset))

    def known_sizes(self, cfg: Any) -> Mapping[str, int]:
        data: DatasetConfig = cfg.dataset
        return {"train": data.train, "val": data.val, "test": data.test, **model_sizes(data)}

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        return GraphModule(GPSModel(cfg.model, cfg.dataset, attention), cfg.recipe, cfg.dataset)

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        if done:
            return None
        metric = cfg.dataset.metric
        mode = "min" if metric in LOWER_IS_BETTER else "max"
        decimals = DECIMALS - 2 if UNITS.get(metric) == "%" else DECIMALS
        selection = Selection(f"val/{metric}", mode, decimals=decimals)
        epochs, limit = cfg.recipe.max_epochs, cfg.budget.max_epochs
        return Phase("main", epochs if limit is None else min(limit, epochs), selection=selection)

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        (main,) = done
        names = [metric.name for metric in self.metrics(cfg)]
        chosen = main.history[main.selected_epoch] if main.selected_epoch >= 0 else {}
        found = {**chosen, **main.metrics, "train/epochs_selected": float(main.selected_epoch + 1)}
        return {name: found[name] for name in names if name in found}


def _meaning(dataset: DatasetConfig) -> str | None:
    """What a reader must know of the primary metric."""
    if dataset.metric == "mrr":
        return "raw: other contacts and the node itself count as negatives"
    if dataset.task == "node_classification":
        return "mean over classes, all nodes of the split together"
    return None


DOMAIN = GraphDomain()
