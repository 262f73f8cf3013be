"""The language domain: protocols, phases and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkModule, Domain
from domains.contract import DataSource, Metric, Phase, PhaseResult, Selection
from domains.language import data, sources
from domains.language.config import ATTACK_RATES, SPEC
from domains.language.data import LanguageData
from domains.language.evaluate import Score
from domains.language.interface import LanguageModel
from domains.language.module import BESIDE, LanguageModule
from domains.language.transformer import Transformer
from domains.language.transformer_xl import TransformerXL


class LanguageDomain(Domain):
    """WikiText with causal Transformers and Transformer-XL. See `domains/language/README.md`."""

    name = "language"
    summary = "word-level language modelling (WikiText-103)"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        own = f"ppl_{cfg.protocol}"
        metrics = [Metric(f"test/{own}", False)]
        if cfg.dataset.attack != "none":
            swapped = f"words swapped, mode {cfg.dataset.attack}"
            metrics += [
                Metric(f"test/{own}_attack{rate}", False, note=f"{swapped}, nominal rate {rate} %")
                for rate in ATTACK_RATES
            ]
        metrics.append(Metric(f"val/{own}", False))
        metrics += [Metric(f"test/ppl_{protocol}", False) for protocol in BESIDE[cfg.protocol]]
        if cfg.protocol != "segments":
            metrics.append(Metric("val/ppl_segments", False, note="selects the weights"))
        metrics.append(Metric("val/loss", False, "nats", "in segments, selects the weights"))
        note = "frequencies of the training text alone, no model"
        metrics.append(Metric("test/ppl_unigram", False, note=note))
        return metrics

    def require_data(self, cfg: Any) -> DataSource:
        return sources.require(cfg.dataset)

    def build_data(self, cfg: Any, phase: Phase) -> LanguageData:
        return data.build(cfg)

    def tiny(self, cfg: Any, phase: Phase) -> LanguageData:
        return data.tiny(cfg)

    def known_sizes(self, cfg: Any) -> Mapping[str, int] | None:
        return data.known_sizes(cfg.dataset)

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        """The model.

        Raises:
            ValueError: the protocol needs a memory and the model has none.
        """
        model, recipe, vocabulary = cfg.model, cfg.recipe, sizes["vocabulary"]
        net: LanguageModel
        if model.family == "transformer_xl":
            net = TransformerXL(model, attention, vocabulary=vocabulary)
        elif cfg.protocol == "xl":
            raise ValueError(
                "protocol=xl needs model.family=transformer_xl, whose memory it reads; allowed "
                "with model.family=transformer: sliding, segments"
            )
        else:
            longest = max(recipe.segment, recipe.window)
            net = Transformer(model, attention, vocabulary=vocabulary, longest=longest)
        return LanguageModule(net, recipe, cfg.protocol)

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        if done:
            return None
        epochs, limit = cfg.recipe.max_epochs, cfg.budget.max_epochs
        length = epochs if limit is None else min(limit, epochs)
        return Phase("main", length, selection=Selection("val/loss", "min"))

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        (main,) = done
        assert main.best is not None
        selected = Score(main.best, 1).perplexity
        found = {"val/ppl_segments": selected, "val/loss": main.best, **main.metrics}
        return {metric.name: found[metric.name] for metric in self.metrics(cfg)}


DOMAIN = LanguageDomain()
