"""Small graphs and sets for the tests of the data side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch_geometric.data import Data

from domains.graph.config import DatasetConfig
from domains.graph.store import PackedGraphs, pack

CONF = Path(__file__).parents[3] / "conf" / "dataset" / "graph"
SETS = tuple(sorted(path.stem for path in CONF.glob("*.yaml")))

MINI = {
    "name": "zinc",
    "targets": 1,
    "node_types": 28,
    "edge_types": 4,
    "train": 6,
    "val": 3,
    "test": 3,
    "rwse_steps": 4,
}
"""A set of a few graphs in the form of ZINC."""


def dataset(name: str, **options: Any) -> DatasetConfig:
    """A set as its YAML describes it, with changes."""
    return DatasetConfig(**{**yaml.safe_load((CONF / f"{name}.yaml").read_text()), **options})


def mini(**options: Any) -> DatasetConfig:
    return DatasetConfig(**{**MINI, **options})


def random_edges(nodes: int, generator: torch.Generator, rate: float = 0.3) -> Tensor:
    """(2, E) directed edges of a random graph without loops."""
    chosen = torch.rand(nodes, nodes, generator=generator) < rate
    chosen.fill_diagonal_(False)
    return chosen.nonzero().t()


def zinc_like(count: int, seed: int = 0, sizes: tuple[int, int] = (1, 9)) -> list[Data]:
    """Graphs in the form of ZINC's processed file; some have no edge."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    graphs = []
    for _ in range(count):
        nodes = int(integers(*sizes, 1))
        edges = random_edges(nodes, generator)
        graphs.append(
            Data(
                x=integers(0, 28, nodes, 1),
                edge_index=edges,
                edge_attr=integers(1, 4, edges.shape[1]),
                y=torch.rand(1, generator=generator),
            )
        )
    return graphs


def packed(graphs: list[Data]) -> PackedGraphs:
    """Graphs of :func:`zinc_like` side by side."""
    return pack(
        [
            {
                "x": graph.x,
                "edges": graph.edge_index.t(),
                "edge_attr": graph.edge_attr[:, None],
                "graph_y": graph.y[:, None],
            }
            for graph in graphs
        ]
    )
