"""Hand-made batches and small stand-ins for the engine's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from domains.contract import OptimizerConfig, RecipeConfig, ScheduleConfig
from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES

VECTORS = Path(__file__).parents[2] / "vectors"
SIZES = (1, 5, 3, 9)

TASKS: dict[str, dict[str, Any]] = {
    "graph_regression": {
        "metric": "mae",
        "features": "categorical",
        "node_types": 7,
        "edge_types": 4,
        "targets": 1,
        "rwse_steps": 6,
    },
    "graph_classification": {
        "metric": "accuracy",
        "features": "float",
        "node_width": 5,
        "edge_width": 1,
        "classes": 4,
        "lap_pairs": 3,
    },
    "node_classification": {
        "metric": "accuracy",
        "features": "float",
        "node_width": 3,
        "classes": 2,
        "lap_pairs": 4,
    },
    "multilabel": {"metric": "ap", "features": "atom", "targets": 10, "lap_pairs": 4},
    "contact": {"metric": "mrr", "features": "atom", "lap_pairs": 2},
}
"""A small set of each task; between them all kinds of features and encodings."""


def small_set(task: str, **options: Any) -> DatasetConfig:
    counts = {"train": 8, "val": 4, "test": 4}
    return DatasetConfig(**{"name": "small", "task": task, **counts, **TASKS[task], **options})


def small_model(dataset: DatasetConfig, **options: Any) -> ModelConfig:
    encoding = "rwse" if dataset.rwse_steps else "lappe" if dataset.lap_pairs else "none"
    sizes = {"layers": 2, "width": 16, "heads": 4, "encoding": encoding, "encoding_width": 4}
    return ModelConfig(**{**sizes, **options})


def stored(name: str) -> Any:
    """A file of test vectors."""
    return np.load(VECTORS / f"{name}.npz", allow_pickle=False)


def starts_of(sizes: Sequence[int]) -> Tensor:
    """(B + 1,) first node of each graph, then N."""
    return torch.tensor([0, *np.cumsum(sizes)])


def graph_of(sizes: Sequence[int]) -> Tensor:
    """(N,) graph of each node."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def ring_edges(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """(2, E): a directed ring in every graph of two nodes or more, and a random chord."""
    edges = []
    for first, size in zip(starts_of(sizes).tolist(), sizes, strict=False):
        if size > 1:
            nodes = torch.arange(size)
            ring = torch.stack([nodes, (nodes + 1) % size])
            chord = torch.randint(size, (2, 1), generator=generator)
            edges.append(first + torch.cat([ring, chord], dim=1))
    return torch.cat(edges, dim=1)


def batch_of(
    dataset: DatasetConfig, sizes: Sequence[int] = SIZES, *, seed: int = 0, split: str = "train"
) -> Data:
    """A batch as the loaders of the domain give it."""
    generator = torch.Generator().manual_seed(seed)
    nodes, graphs = sum(sizes), len(sizes)
    graph = graph_of(sizes)
    edge_index = ring_edges(sizes, generator)
    num_edges = edge_index.shape[1]

    def integers(vocabulary: Sequence[int], rows: int) -> Tensor:
        return torch.stack(
            [torch.randint(values, (rows,), generator=generator) for values in vocabulary], dim=1
        )

    batch = Data(edge_index=edge_index, batch=graph, ptr=starts_of(sizes), split=split)
    batch.num_graphs = graphs
    if dataset.features == "atom":
        batch.x = integers(ATOM_TYPES, nodes)
        batch.edge_attr = integers(BOND_TYPES, num_edges)
    elif dataset.features == "categorical":
        batch.x = integers([dataset.node_types or 1], nodes)
        batch.edge_attr = integers([dataset.edge_types or 1], num_edges)
    else:
        batch.x = torch.randn(nodes, dataset.node_width or 1, generator=generator)
        if dataset.edge_width is not None:
            batch.edge_attr = torch.randn(num_edges, dataset.edge_width, generator=generator)
    if dataset.rwse_steps:
        batch.rwse = torch.rand(nodes, dataset.rwse_steps, generator=generator)
    if dataset.lap_pairs:
        column = torch.arange(dataset.lap_pairs)
        beyond = column >= torch.tensor(sizes)[graph][:, None]
        values = torch.rand(graphs, dataset.lap_pairs, generator=generator).sort().values[graph]
        vectors = torch.randn(nodes, dataset.lap_pairs, generator=generator)
        batch.lap_values = values.masked_fill(beyond, float("nan"))
        batch.lap_vectors = vectors.masked_fill(beyond, float("nan"))
    _label(batch, dataset, generator)
    return batch


def _label(batch: Data, dataset: DatasetConfig, generator: torch.Generator) -> None:
    graphs, nodes = batch.num_graphs, len(batch.batch)
    if dataset.task == "graph_regression":
        batch.y = torch.randn(graphs, dataset.targets or 1, generator=generator)
    elif dataset.task == "graph_classification":
        batch.y = torch.randint(dataset.classes or 1, (graphs,), generator=generator)
    elif dataset.task == "node_classification":
        batch.y = torch.randint(dataset.classes or 1, (nodes,), generator=generator)
    elif dataset.task == "multilabel":
        y = torch.randint(2, (graphs, dataset.targets or 1), generator=generator).float()
        y[0, 0] = float("nan")
        batch.y = y
    else:
        # Every edge is a contact; a negative joins its source to some node of the graph.
        batch.contacts = batch.edge_index
        batch.contact_graph = batch.batch[batch.contacts[0]]
        heads = batch.contacts[0].repeat(2)
        sizes = batch.ptr.diff()[batch.batch[heads]]
        draw = torch.rand(len(heads), generator=generator)
        tails = batch.ptr[batch.batch[heads]] + (draw * sizes).long()
        batch.pairs = torch.cat([batch.contacts, torch.stack([heads, tails])], dim=1)
        batch.pair_label = (torch.arange(batch.pairs.shape[1]) < len(heads) // 2).float()


def recipe(**options: Any) -> RecipeConfig:
    """A recipe that learns something in a few steps."""
    fields: dict[str, Any] = {
        "name": "small",
        "max_epochs": 3,
        "batch_size": 4,
        "gradient_clip": 1.0,
        "optimizer": OptimizerConfig(lr=1e-2),
        "schedule": ScheduleConfig(),
    }
    return RecipeConfig(**{**fields, **options})


@dataclass
class Config:
    """What the domain reads of the engine's configuration."""

    dataset: DatasetConfig = field(default_factory=lambda: small_set("graph_regression"))
    model: ModelConfig = field(default_factory=lambda: small_model(small_set("graph_regression")))
    recipe: RecipeConfig = field(default_factory=recipe)
    protocol: str = "graphgps"
    seed: int = 0
    budget: Any = field(default_factory=lambda: SimpleNamespace(max_epochs=None))
