"""Training steps: against the reference's operations, QUEST against standard, share of attention.

The reference point repeats, operation for operation, what rampasek/GraphGPS at 2801570 does in its
layers: edges gathered and scattered one call at a time, `nn.MultiheadAttention` on graphs padded
to the largest of the batch. (torch_geometric's `scatter` stands in the place of torch_scatter's.)
Encoders of positions and read-outs are the same on both sides; they take a small part of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv
from torch_geometric.utils import scatter, to_dense_batch

from attention import AttentionFactory
from domains.base import build_optimizer
from domains.contract import OptimizerConfig
from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.edges import sorted_membership
from domains.graph.model import GPSModel
from domains.graph.module import task_loss
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES
from domains.speed_cases import SpeedCase

GROUP = "graphs: a training step"
OPTIMIZER = OptimizerConfig(name="adamw", lr=1e-3)
CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    """A batch and the model that it is for.

    Attributes:
        graphs: in the batch.
        nodes: mean, standard deviation, smallest and largest number of nodes of a graph.
        dataset: what the features are and what is predicted.
        model: sizes.
    """

    graphs: int
    nodes: tuple[float, float, int, int]
    dataset: DatasetConfig
    model: ModelConfig


SHAPES = {
    "like ZINC": Shape(
        32,
        (23.2, 4.5, 9, 37),
        DatasetConfig(
            train=1, val=1, test=1, node_types=28, edge_types=4, targets=1, rwse_steps=20
        ),
        ModelConfig(
            layers=10,
            width=64,
            heads=4,
            local="gine",
            encoding="rwse",
            encoding_width=28,
            pooling="sum",
            head="san",
            head_layers=3,
        ),
    ),
    "like Peptides": Shape(
        128,
        (151.0, 84.0, 10, 444),
        DatasetConfig(
            task="multilabel",
            metric="ap",
            features="atom",
            train=1,
            val=1,
            test=1,
            targets=10,
            lap_pairs=10,
        ),
        ModelConfig(layers=4, width=96, heads=4),
    ),
}
"""With the sizes of the sets: 23 and 151 nodes in the mean, in Peptides 10 to 444."""


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase]:
    """Both shapes; quick ones have an eighth of the graphs."""
    for name, shape in SHAPES.items():
        batch = batch_of(shape, shape.graphs // 8 if quick else shape.graphs).to(device)
        make = partial(_step, shape, batch, device)
        yield SpeedCase(
            group=GROUP,
            name=f"{name}, standard",
            baseline=partial(make, "reference"),
            candidate=partial(make, "standard"),
            against="GraphGPS's operations",
            time_target=0.75,
        )
        yield SpeedCase(
            group=GROUP,
            name=f"{name}, quest",
            baseline=partial(make, "standard"),
            candidate=partial(make, "quest"),
            against="standard",
            time_target=1.03,
        )
        yield SpeedCase(
            group=GROUP,
            name=f"{name}, without attention",
            baseline=partial(make, "standard"),
            candidate=partial(make, "nothing"),
            against="standard: 1 less the ratio is the share of attention",
        )


def batch_of(shape: Shape, graphs: int) -> Any:
    """Graphs of random sizes, each a chain whose links run both ways: nearly what molecules are."""
    generator = torch.Generator().manual_seed(0)
    mean, sd, smallest, largest = shape.nodes
    sizes = torch.empty(graphs).normal_(mean, sd, generator=generator).round()
    sizes = sizes.clamp(smallest, largest).long()
    starts = F.pad(sizes.cumsum(0), (1, 0))
    graph = torch.arange(graphs).repeat_interleave(sizes)
    first = torch.arange(len(graph) - 1)[graph[1:] == graph[:-1]]
    edge_index = torch.cat(
        [torch.stack([first, first + 1]), torch.stack([first + 1, first])], dim=1
    )
    dataset = shape.dataset
    atoms = dataset.features == "atom"
    node_types = ATOM_TYPES if atoms else (dataset.node_types or 1,)
    edge_types = BOND_TYPES if atoms else (dataset.edge_types or 1,)

    def integers(kinds: tuple[int, ...], rows: int) -> Tensor:
        columns = [torch.randint(kind, (rows,), generator=generator) for kind in kinds]
        return torch.stack(columns, dim=1)

    targets = torch.randint(2, (graphs, dataset.targets or 1), generator=generator)
    batch = Data(
        x=integers(node_types, len(graph)),
        edge_index=edge_index,
        edge_attr=integers(edge_types, edge_index.shape[1]),
        y=targets.float(),
        batch=graph,
        ptr=starts,
    )
    if dataset.rwse_steps:
        batch.rwse = torch.rand(len(graph), dataset.rwse_steps, generator=generator)
    if dataset.lap_pairs:
        batch.lap_vectors = torch.randn(len(graph), dataset.lap_pairs, generator=generator)
        batch.lap_values = torch.rand(len(graph), dataset.lap_pairs, generator=generator)
    return batch


def _step(shape: Shape, batch: Any, device: str, kind: str) -> Callable[[], object]:
    """One training step of `standard`, `quest`, `reference`, or of a model without attention."""
    torch.manual_seed(0)
    variant = kind if kind == "quest" else "standard"
    net: nn.Module = GPSModel(shape.model, shape.dataset, AttentionFactory(variant))
    if kind == "reference":
        net = _PlainModel(net, shape.model)
    elif kind == "nothing":
        for layer in net.layers:  # type: ignore[union-attr]
            layer.attention = _Nothing()
    net = net.to(device)
    optimizer = (
        torch.optim.AdamW(net.parameters(), lr=OPTIMIZER.lr)
        if kind == "reference"
        else build_optimizer(net, OPTIMIZER)
    )

    def step() -> None:
        optimizer.zero_grad()
        task_loss(shape.dataset.task, net(batch), batch).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()

    return step


class _Nothing(nn.Module):
    def forward(self, x: Tensor, **call: Any) -> Tensor:
        """What comes in."""
        return x


class _PlainModel(nn.Module):
    def __init__(self, net: Any, config: ModelConfig) -> None:
        super().__init__()
        self.nodes, self.edges, self.readout = net.nodes, net.edges, net.readout
        for encoder in (self.nodes, self.edges):
            encoder.features = _PlainEmbeddings(encoder.features.columns)
        self.layers = nn.ModuleList(_PlainLayer(config) for _ in range(config.layers))

    def forward(self, batch: Any) -> Tensor:
        """(B, outputs)."""
        x, edge = self.nodes(batch), self.edges(batch)
        for layer in self.layers:
            x, edge = layer(x, edge, batch.edge_index, batch.batch)
        out: Tensor = self.readout(x, sorted_membership(batch.batch, batch.ptr))
        return out


class _PlainEmbeddings(nn.Module):
    def __init__(self, columns: nn.ModuleList) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, values: Tensor) -> Tensor:
        """(N, F) integers to (N, width)."""
        embedded = [embed(values[:, i]) for i, embed in enumerate(self.columns)]
        return torch.stack(embedded).sum(0)


class _PlainLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.local: nn.Module
        if config.local == "gine":
            hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.local = GINEConv(hidden)
        else:
            self.local = _PlainGated(width)
        self.attention = nn.MultiheadAttention(
            width, config.heads, dropout=config.attention_dropout, batch_first=True
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(
        self, x: Tensor, edge: Tensor, edge_index: Tensor, graph: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Node and edge states."""
        if isinstance(self.local, _PlainGated):
            local, edge = self.local(x, edge, edge_index)
        else:
            local = x + self.local(x, edge_index, edge)
        padded, mask = to_dense_batch(x, graph)
        attended = self.attention(
            padded, padded, padded, key_padding_mask=~mask, need_weights=False
        )[0][mask]
        x = self.norms[0](local) + self.norms[1](x + attended)
        return self.norms[2](x + self.contract(F.relu(self.expand(x)))), edge


class _PlainGated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))

    def forward(self, x: Tensor, edge: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Node and edge states."""
        source, target = edge_index
        own, sent, to_target, of_source = (linear(x) for linear in self.maps[:4])
        gate = to_target.index_select(0, target) + of_source.index_select(0, source)
        gate = gate + self.maps[4](edge)
        weight = torch.sigmoid(gate)
        above = scatter(weight * sent.index_select(0, source), target, 0, len(x), "sum")
        below = scatter(weight, target, 0, len(x), "sum")
        x = x + F.relu(self.norms[0](own + above / (below + 1e-6)))
        return x, edge + F.relu(self.norms[1](gate))
