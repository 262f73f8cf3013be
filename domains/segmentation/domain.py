"""The segmentation domain: protocols, phases and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkModule, Domain
from domains.common.corruption_presets import PRESETS
from domains.contract import DataSource, Example, Metric, Phase, PhaseResult
from domains.segmentation import data
from domains.segmentation.checkpoint import load_encoder, require_weights
from domains.segmentation.config import OVERLAP, SPEC, ModelConfig
from domains.segmentation.data import SegmentationData
from domains.segmentation.metrics import Condition
from domains.segmentation.model import Segmenter
from domains.segmentation.module import SegmentationModule
from domains.segmentation.pictures import draw_examples


class SegmentationDomain(Domain):
    """ADE20K and other pictures with Segmenter. See `domains/segmentation/README.md`."""

    name = "segmentation"
    summary = "semantic segmentation (ADE20K), clean and corrupted"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        window = cfg.recipe.crop
        how = f"window {window}, stride {_stride(cfg.protocol, window)}"
        if cfg.protocol == "multiscale":
            how += ", six scales and their mirror images"
        metrics = [
            Metric("test/miou", True, "%", how),
            Metric("test/macc", True, "%"),
            Metric("test/aacc", True, "%"),
            Metric("test/miou_majority", True, "%", "always the most frequent class, no model"),
        ]
        preset = cfg.dataset.corrupted
        if preset != "none":
            types = PRESETS[preset]
            what = f"mean over {len(types)} corruptions of the mean over their severities"
            metrics.append(Metric(f"test/miou_{preset}", True, "%", what))
            metrics += [
                Metric(f"test/miou_{preset}_{corruption}", True, "%", _severities(levels))
                for corruption, levels in types.items()
            ]
        return metrics

    def require_data(self, cfg: Any) -> DataSource:
        if cfg.model.init:
            require_weights(_init_path(cfg.model, cfg.attention.name))
        return data.require(cfg)

    def build_data(self, cfg: Any, phase: Phase) -> SegmentationData:
        return data.build(cfg)

    def tiny(self, cfg: Any, phase: Phase) -> SegmentationData:
        return data.tiny(cfg)

    def known_sizes(self, cfg: Any) -> Mapping[str, int] | None:
        return data.known_sizes(cfg)

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        """The model, its encoder with the weights that the configuration names.

        Raises:
            DataUnavailable, DataCorrupt, ValueError: see
                :func:`domains.segmentation.checkpoint.load_encoder`.
        """
        model, crop = cfg.model, sizes["crop"]
        net = Segmenter(model, attention, classes=sizes["classes"], crop=crop)
        if model.init:
            path = _init_path(model, attention.variant)
            kept = load_encoder(net.encoder, path, allow=model.init_allow)
            if kept:
                print(f"model.init={path}: not as in the file: {', '.join(kept)}")
        return SegmentationModule(
            net,
            cfg.recipe,
            classes=sizes["classes"],
            window=crop,
            stride=_stride(cfg.protocol, crop),
            mirrored=cfg.protocol == "multiscale",
            preset=cfg.dataset.corrupted,
            corrupted=conditions(cfg.dataset.corrupted),
        )

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        if done:
            return None
        epochs, limit = cfg.recipe.max_epochs, cfg.budget.max_epochs
        return Phase("main", epochs if limit is None else min(limit, epochs))

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        (main,) = done
        return {metric.name: main.metrics[metric.name] for metric in self.metrics(cfg)}

    def examples(
        self, cfg: Any, module: BenchmarkModule, data: SegmentationData
    ) -> tuple[Example, ...]:
        assert isinstance(module, SegmentationModule)
        return draw_examples(module, data.test_dataloader(), cfg.recipe.normalisation)


def conditions(preset: str) -> list[Condition]:
    """Types and severities of a set of corruptions, none for `none`."""
    if preset == "none":
        return []
    return [(name, level) for name, levels in PRESETS[preset].items() for level in levels]


def _stride(protocol: str, window: int) -> int:
    """From one window to the next; windows that are no wider than the overlap lie side by side."""
    apart = window - OVERLAP
    return apart if protocol != "slide" and apart > 0 else window


def _severities(levels: Sequence[int]) -> str:
    several = len(levels) > 1
    return f"severities {levels[0]} to {levels[-1]}" if several else f"severity {levels[0]}"


def _init_path(model: ModelConfig, variant: str) -> str:
    return model.init.replace("%attention%", variant)


DOMAIN = SegmentationDomain()
