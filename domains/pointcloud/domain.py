"""The point-cloud domain: protocols, phase and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention import AttentionFactory
from domains.base import BenchmarkData, BenchmarkModule, Domain
from domains.contract import DataSource, Example, Metric, Phase, PhaseResult, Selection
from domains.pointcloud import data, sources
from domains.pointcloud.classes import NAMES
from domains.pointcloud.config import CLASSES, SPEC
from domains.pointcloud.data import PointCloudData
from domains.pointcloud.model import PointTransformerV3
from domains.pointcloud.module import PointCloudModule
from domains.pointcloud.pictures import from_above

EXAMPLES = 2
"""Frames that are drawn."""

PRESENT = "mean over the classes that occur; selected on the same frames"


class PointCloudDomain(Domain):
    """nuScenes-lidarseg with Point Transformer V3. See `domains/pointcloud/README.md`."""

    name = "pointcloud"
    summary = "semantic segmentation of LiDAR sweeps (nuScenes) with Point Transformer V3"
    spec = SPEC

    def metrics(self, cfg: Any) -> Sequence[Metric]:
        own = cfg.protocol
        constant = "of the best constant prediction, no model"
        metrics = [
            Metric(f"val/miou_{own}", True, "%", PRESENT),
            Metric(f"val/miou_majority_{own}", True, "%", constant),
            Metric(f"val/accuracy_{own}", True, "%", "share of all points"),
            *(Metric(f"val/iou_{name}_{own}", True, "%") for name in NAMES),
        ]
        if own != "single":
            metrics.append(Metric("val/miou_single", True, "%", f"{PRESENT}; selects the weights"))
        return [
            *metrics,
            Metric("val/loss", False, "", "at the chosen epoch"),
            Metric("train/loss", False, "", "at the chosen epoch"),
            Metric("train/epochs_selected", False, "", "epochs of training behind the result"),
        ]

    def require_data(self, cfg: Any) -> DataSource:
        return sources.require(cfg.dataset)

    def build_data(self, cfg: Any, phase: Phase) -> PointCloudData:
        return data.build(cfg)

    def tiny(self, cfg: Any, phase: Phase) -> PointCloudData:
        return data.tiny(cfg)

    def known_sizes(self, cfg: Any) -> Mapping[str, int]:
        return data.known_sizes(cfg.dataset)

    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        net = PointTransformerV3(cfg.model, CLASSES, attention)
        return PointCloudModule(net, cfg.recipe, protocol=cfg.protocol, seed=cfg.seed)

    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        if done:
            return None
        epochs, limit = cfg.recipe.max_epochs, cfg.budget.max_epochs
        length = epochs if limit is None else min(limit, epochs)
        return Phase("main", length, selection=Selection("val/miou", "max"))

    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        (main,) = done
        chosen = main.history[main.selected_epoch] if main.selected_epoch >= 0 else {}
        found = {**chosen, **main.metrics, "train/epochs_selected": float(main.selected_epoch + 1)}
        if "val/miou" in chosen:
            found.setdefault("val/miou_single", chosen["val/miou"])
        names = [metric.name for metric in self.metrics(cfg)]
        return {name: found[name] for name in names if name in found}

    def examples(self, cfg: Any, module: BenchmarkModule, data: BenchmarkData) -> Sequence[Example]:
        """The first validation frames from above, coloured by class."""
        assert isinstance(module, PointCloudModule)
        found: list[Example] = []
        for batch in data.val_dataloader():
            prediction = module.scores(batch).argmax(1)
            for scene in range(len(batch.offset)):
                here = batch.batch == scene
                coord = batch.coord[here]
                found.append(
                    Example(
                        name=f"validation frame {len(found)}",
                        given={"truth": from_above(coord, batch.label[here])},
                        prediction=from_above(coord, prediction[here]),
                    )
                )
                if len(found) == EXAMPLES:
                    return found
        return found


DOMAIN = PointCloudDomain()
