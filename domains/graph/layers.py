"""The GPS layer: message passing and attention side by side, then a feed-forward part.

Shapes: N nodes and E edges of all graphs of a batch, D width.

Source: rampasek/GraphGPS at 2801570 (MIT), `graphgps/layer/gps_layer.py` and
`gatedgcn_layer.py`, and torch_geometric's `GINEConv`. Equal to them in values, gradients and
running statistics (`tests/domains/graph/test_layers.py`), with one difference in form: what
nothing reads of the last layer's edge states is not computed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import LayerNorm

from attention import AttentionFactory
from domains.common.dropout import Dropout
from domains.graph.config import ModelConfig
from domains.graph.edges import Edges
from domains.graph.layout import Layout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
GATE_EPS = 1e-6


class GINE(nn.Module):
    """x' = W2 act(W1 (x_i + sum over arriving edges of relu(x_j + e_ij))).

    Edge states stay as they are.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.expand = nn.Linear(config.width, config.width)
        self.contract = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, edge: Tensor, edges: Edges) -> Tensor:
        """(N, D)."""
        gathered = x + edges.sum_arriving(F.relu(edges.of_source(x) + edge))
        out: Tensor = self.contract(self.activation(self.expand(gathered)))
        return out


class GatedGCN(nn.Module):
    """Messages weighted by gates, which are functions of the edge states.

        e'_ij = D x_i + E x_j + C e_ij        gate = sigmoid(e')
        x'_i  = A x_i + sum(gate * B x_j) / (sum(gate) + 1e-6)     over the edges that arrive

    Both go through batch norm, activation and dropout and are added to what came in. i is the
    target of an edge, j its source.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.activation = ACTIVATIONS[config.activation]
        self.own, self.sent, self.edge, self.gate_target, self.gate_source = (
            nn.Linear(width, width) for _ in range(5)
        )
        self.norm_nodes = nn.BatchNorm1d(width)
        self.norm_edges = nn.BatchNorm1d(width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, edge: Tensor, edges: Edges, edge_out: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Node states (N, D), and edge states (E, D) where `edge_out` asks for them."""
        # In place: with 60 edges a node, fresh tensors of that size cost more than the additions.
        gate = self.edge(edge).add_(edges.of_target(self.gate_target(x)))
        gate = gate.add_(edges.of_source(self.gate_source(x)))
        weight = torch.sigmoid(gate)
        gathered = edges.sum_arriving(weight * edges.of_source(self.sent(x)))
        new = self.own(x) + gathered / (edges.sum_arriving(weight) + GATE_EPS)
        x = x + self.dropout(self.activation(self.norm_nodes(new)))
        if not edge_out:
            return x, None
        return x, edge + self.dropout(self.activation(self.norm_edges(gate)))


class GPSLayer(nn.Module):
    """Local and global branch, each normalised behind its residual connection, are added.

        local = norm(x + dropout(GINE(x, e)))   or   norm(GatedGCN(x, e).x)
        attn  = norm(x + dropout(attention(x)))
        out   = norm(h + dropout(W2 dropout(act(W1 h))))    with h = local + attn

    Args:
        config: sizes and choices.
        attention: builds the attention.
        layer: index, from 0.
    """

    def __init__(self, config: ModelConfig, attention: AttentionFactory, layer: int) -> None:
        super().__init__()
        width = config.width
        self.local = GINE(config) if config.local == "gine" else GatedGCN(config)
        self.edge_out = layer + 1 < config.layers
        self.attention = attention(
            width,
            config.heads,
            projection="fused",
            init="xavier",
            attention_dropout=config.attention_dropout,
            layer=layer,
            num_layers=config.layers,
            layer_state=True,
            requests=frozenset({"packed" if config.packing == "packed" else "padding"}),
        )
        self.activation = ACTIVATIONS[config.activation]
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)
        self.norm_local = Norm(config)
        self.norm_attention = Norm(config)
        self.norm_out = Norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, edge: Tensor, edges: Edges, layout: Layout, graph: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Node states (N, D) and edge states (E, D).

        Args:
            x: (N, D) node states.
            edge: (E, D) edge states.
            edges: of the batch.
            layout: of the batch.
            graph: (N,) int64 graph of each node, rising.
        """
        if isinstance(self.local, GatedGCN):
            local, new_edge = self.local(x, edge, edges, self.edge_out)
            edge = edge if new_edge is None else new_edge
        else:
            local = x + self.dropout(self.local(x, edge, edges))
        attended = x + self.dropout(layout.attend(self.attention, x))
        x = self.norm_local(local, graph) + self.norm_attention(attended, graph)
        hidden = self.dropout(self.activation(self.expand(x)))
        return self.norm_out(x + self.dropout(self.contract(hidden)), graph), edge


class Norm(nn.Module):
    """Batch norm over all nodes, or layer norm over all nodes and columns of each graph."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        batch = config.norm == "batch"
        self.norm = nn.BatchNorm1d(config.width) if batch else LayerNorm(config.width, mode="graph")

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """(N, D)."""
        by_graph = isinstance(self.norm, LayerNorm)
        normed: Tensor = self.norm(x, graph) if by_graph else self.norm(x)
        return normed
