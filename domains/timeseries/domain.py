"""The time-series domain: protocols, phases and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkModule, Domain
from domains.contract import DataSource, Metric, Phase, PhaseResult, Selection
from domains.timeseries import sources
from domains.timeseries.config import ON_TEST, SPEC, DatasetConfig
from domains.timeseries.data import TimeSeriesData, build
from domains.timeseries.model import TimeSeriesTransformer
from domains.timeseries.module import TimeSeriesModule
from domains.timeseries.tiny import tiny_set

PATIENCE = 10
FIXED_EPOCHS = (25, 50, 100)
"""Epochs after which the test accuracy is reported without any selection."""


class TimeSeriesDomain(Domain):
    """UEA classification with TSLib's Transformer. See `domains/timeseries/README.md`."""

    name = "timeseries"
    summary = "classification of multivariate time series (UEA archive)"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        published = cfg.protocol == "tslib"
        note = ON_TEST if published else None
        honest = "accuracy after the last epoch" if published else "test/accuracy"
        metrics = [
            Metric("test/accuracy", True, "%", note),
            Metric("test/accuracy_best", True, "%", "best epoch on the test split"),
            Metric("test/selection_gap", False, "points", f"test/accuracy_best minus {honest}"),
            Metric("test/accuracy_last", True, "%", "after the last epoch, nothing selected"),
            *(
                Metric(f"test/accuracy_epoch{n}", True, "%", f"after {n} epochs, nothing selected")
                for n in FIXED_EPOCHS
            ),
            Metric("test/loss", False, "nats", note),
            Metric("train/epochs_selected", False, "", "epochs of training behind the result"),
        ]
        if not published:
            metrics.append(Metric("val/accuracy", True, "%", "at the chosen epoch"))
        return metrics

    def require_data(self, cfg: Any) -> DataSource:
        return sources.require(cfg.dataset)

    def build_data(self, cfg: Any, phase: Phase) -> TimeSeriesData:
        return build(cfg, phase, sources.load(cfg.dataset))

    def tiny(self, cfg: Any, phase: Phase) -> TimeSeriesData:
        return build(cfg, phase, tiny_set(cfg.dataset))

    def known_sizes(self, cfg: Any) -> Mapping[str, int] | None:
        """Sizes of the main phase; a validation part is exact where classes are of equal size."""
        data: DatasetConfig = cfg.dataset
        keys = ("channels", "classes", "length", "train", "test")
        sizes = {key: size for key in keys if (size := getattr(data, key)) is not None}
        if len(sizes) < len(keys):
            return None
        if cfg.protocol == "holdout":
            sizes["length"] = data.train_length or sizes["length"]
            if not data.folds:
                sizes["val"] = round(data.validation * sizes["train"])
                sizes["train"] -= sizes["val"]
        return sizes

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        net = TimeSeriesTransformer(
            cfg.model,
            attention,
            channels=sizes["channels"],
            classes=sizes["classes"],
            length=sizes["length"],
            mask_padding=cfg.protocol != "tslib",
        )
        return TimeSeriesModule(net, cfg.recipe, sizes["classes"])

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        epochs = _epochs(cfg)
        if cfg.protocol == "tslib":
            selection = Selection("test/accuracy", "max", PATIENCE, "later")
            return None if done else Phase("main", epochs, selection=selection)
        selection = Selection("val/accuracy", "max", PATIENCE, "later")
        folds = cfg.dataset.folds
        if not folds:
            return None if done else Phase("main", epochs, selection=selection)
        if len(done) < folds:
            return Phase(
                f"fold{len(done)}",
                epochs,
                selection=selection,
                test=False,
                data={"part": "fold", "fold": len(done)},
            )
        if len(done) > folds:
            return None
        chosen = [result.selected_epoch + 1 for result in done]
        # floor(x + 0.5): Python's round would send 12.5 down and 13.5 up.
        mean = math.floor(sum(chosen) / len(chosen) + 0.5)
        return Phase("final", mean, data={"part": "all"})

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        *folds, main = done
        accuracy = main.metrics["test/accuracy"]
        by_epoch = [values["test/accuracy"] for values in main.history]
        best, last = max(by_epoch), by_epoch[-1]
        honest = last if cfg.protocol == "tslib" else accuracy
        summary = {
            "test/accuracy": accuracy,
            "test/accuracy_best": best,
            "test/selection_gap": best - honest,
            "test/accuracy_last": last,
            "test/loss": main.metrics["test/loss"],
            "train/epochs_selected": float(main.selected_epoch + 1),
        }
        for epochs in FIXED_EPOCHS:
            if len(by_epoch) >= epochs:
                summary[f"test/accuracy_epoch{epochs}"] = by_epoch[epochs - 1]
        chosen = [result.best for result in folds or [main] if result.best is not None]
        if cfg.protocol != "tslib":
            summary["val/accuracy"] = sum(chosen) / len(chosen)
        return summary


def _epochs(cfg: Any) -> int:
    """Epochs of the recipe, at most those of the budget."""
    epochs: int = cfg.recipe.max_epochs
    limit: int | None = cfg.budget.max_epochs
    return epochs if limit is None else min(limit, epochs)


DOMAIN = TimeSeriesDomain()
