"""Batches of graphs: cut out of packed splits, without loader processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch_geometric.data import Data

from domains.base import BenchmarkData
from domains.common.samplers import (
    NumberedBatches,
    Remaining,
    Request,
    SequentialBatches,
    ShuffledBatches,
)
from domains.common.seeds import derive
from domains.contract import DataInfo, Phase
from domains.graph.config import DatasetConfig
from domains.graph.contacts import with_negatives
from domains.graph.prepare import PreparedSet
from domains.graph.store import SPLITS, PackedGraphs

RESIDENT_SHARE = 0.25
"""Splits move to a device as long as they take up to this share of its free memory."""


class GraphSplit(Dataset[Data]):
    """A split that gives a batch for a :class:`Request`.

    Args:
        name: of the split.
        graphs: prepared.
        seed: of the run; with split, epoch and number it fixes the negative pairs of a batch.
    """

    def __init__(self, name: str, graphs: PackedGraphs, seed: int) -> None:
        self.name = name
        self.graphs = graphs
        self.seed = seed

    def move(self, device: torch.device) -> None:
        """Hold the graphs on `device` from now on, unless they would crowd it."""
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if self.graphs.nbytes > RESIDENT_SHARE * free:
                return
        self.graphs = self.graphs.to(device)

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, request: Request) -> Data:
        batch = self.graphs.take(request.indices)
        batch.split = self.name
        if "contacts" in batch:
            seed = derive(self.seed, "negatives", self.name, request.epoch, request.number)
            generator = torch.Generator().manual_seed(seed)
            ptr = batch.ptr.cpu()
            pairs, label = with_negatives(batch.contacts, batch.contact_graph, ptr, generator)
            device = self.graphs.device
            batch.pairs, batch.pair_label = pairs.to(device), label.to(device)
            batch.contacts = batch.contacts.to(device)
            batch.contact_graph = batch.contact_graph.to(device)
        return batch


class GraphData(BenchmarkData):
    """The three splits of a set. Validation and test are scored after each epoch.

    Evaluation has the batch size of training, as in the published protocol: the score of
    PCQM-Contact depends on it.

    Args:
        splits: prepared graphs by name.
        info: where they come from.
        batch_size: graphs a batch.
        seed: of the run; with the epoch it fixes the order of the training graphs.
    """

    def __init__(
        self, splits: Mapping[str, PackedGraphs], info: DataInfo, *, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        self.info = info
        self.splits = {name: GraphSplit(name, splits[name], seed) for name in SPLITS}
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage: str) -> None:
        if self.trainer is not None:
            for split in self.splits.values():
                split.move(self.trainer.strategy.root_device)

    def train_dataloader(self) -> DataLoader[Data]:
        size = len(self.splits["train"])
        order = ShuffledBatches(size, self.batch_size, self.seed, self.first_epoch)
        remaining = Remaining(NumberedBatches(order), self.first_epoch, self.first_batch)
        return self._loader("train", remaining)

    def val_dataloader(self) -> list[DataLoader[Data]]:
        return [self._evaluation_loader(name) for name in ("val", "test")]

    def test_dataloader(self) -> DataLoader[Data]:
        return self._evaluation_loader("test")

    def _evaluation_loader(self, name: str) -> DataLoader[Data]:
        order = SequentialBatches(len(self.splits[name]), self.batch_size)
        return self._loader(name, NumberedBatches(order))

    def _loader(self, name: str, batches: Sampler[Request]) -> DataLoader[Data]:
        # Own generator: a loader draws a number at the start of each epoch, and taken from the
        # global stream it would move the dropout masks.
        generator = torch.Generator().manual_seed(0)
        return DataLoader(
            self.splits[name],
            batch_size=None,
            sampler=batches,
            generator=generator,
        )


def build(cfg: Any, phase: Phase, prepared: PreparedSet) -> GraphData:
    """Data of a phase; all phases have the published splits."""
    sizes = {name: len(prepared.splits[name]) for name in SPLITS}
    info = DataInfo(
        kind=prepared.kind,
        version=cfg.dataset.version,
        fingerprint=prepared.fingerprint,
        source=prepared.source,
        sizes={**sizes, **model_sizes(cfg.dataset)},
        notes=prepared.notes,
    )
    return GraphData(prepared.splits, info, batch_size=cfg.recipe.batch_size, seed=cfg.seed)


def model_sizes(config: DatasetConfig) -> dict[str, int]:
    """What the configuration says of features and targets, where it says something."""
    keys = ("node_types", "edge_types", "node_width", "edge_width", "classes", "targets")
    return {key: value for key in keys if (value := getattr(config, key)) is not None}
