"""The toy domain: protocols, the one phase, outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkData, BenchmarkModule, Domain, EpochEnded
from domains.contract import DataSource, Metric, Phase, PhaseResult
from domains.toy.config import CHOICES, SPEC
from domains.toy.data import ToyData, build
from domains.toy.generator import CLASSES, WIDTH
from domains.toy.model import ToyTransformer
from domains.toy.module import ToyModule
from domains.toy.outcomes import outcome_metrics
from domains.toy.together import train_together


class ToyDomain(Domain):
    """Spurious attention, after the QUEST paper. See `domains/toy/README.md`."""

    name = "toy"
    summary = "spurious attention: does training find the answer or a misleading feature"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        return [
            Metric("test/correct", True, "%", "100 if train and test accuracy exceed 90 %, else 0"),
            Metric("test/biased", False, "%", "100 if train is in 50-80 % and test in 20-40 %"),
            Metric("test/degenerate", False, "%", "100 if train and test are below 15 %"),
            Metric("test/other", False, "%", "100 if none of the other outcomes applies"),
            Metric("test/accuracy", True, "%", "after the last epoch, nothing selected"),
            Metric("train/accuracy", True, "%", "after the last epoch"),
            Metric("train/loss", False, "nats", "mean over the last epoch"),
        ]

    def require_data(self, cfg: Any) -> DataSource:
        return DataSource("regenerated", "drawn from dataset.seed; no files")

    def build_data(self, cfg: Any, phase: Phase) -> ToyData:
        return build(cfg, tiny=False)

    def tiny(self, cfg: Any, phase: Phase) -> ToyData:
        return build(cfg, tiny=True)

    def known_sizes(self, cfg: Any) -> Mapping[str, int] | None:
        data = cfg.dataset
        sizes = {name: getattr(data, name) for name in ("train", "test", "length")}
        return {**sizes, "width": WIDTH, "classes": CLASSES}

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        norm = CHOICES[cfg.protocol].norm
        net = ToyTransformer(cfg.model, attention, length=sizes["length"], norm=norm)
        return ToyModule(net, cfg.recipe)

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        limit: int | None = cfg.budget.max_epochs
        epochs: int = cfg.recipe.max_epochs
        return None if done else Phase("main", epochs if limit is None else min(limit, epochs))

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        (main,) = done
        last = main.history[-1]
        train, test = last["train/accuracy"], main.metrics["test/accuracy"]
        return {
            **outcome_metrics(train, test),
            "test/accuracy": test,
            "train/accuracy": train,
            "train/loss": last["train/loss"],
        }

    def train_together(
        self,
        cfgs: Sequence[Any],
        modules: Sequence[BenchmarkModule],
        data: BenchmarkData,
        phase: Phase,
        epoch_ended: EpochEnded,
    ) -> Sequence[Mapping[str, float]]:
        assert isinstance(data, ToyData)
        return train_together(cfgs, modules, data, phase, epoch_ended)


DOMAIN = ToyDomain()
