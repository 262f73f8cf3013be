"""Read-outs: from node states to predictions.

Source: torch_geometric 2.8 `graphgym/models/layer.py` (class MLP), rampasek/GraphGPS at 2801570
`graphgps/head/`, toenshoff/LRGB at c3500cb `graphgps/head/mlp_graph.py` (`plain`).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from attention.normalize import l2_normalize
from domains.common.dropout import Dropout
from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.edges import Membership, gather
from domains.graph.layers import ACTIVATIONS

ON_GRAPHS = ("graph_regression", "graph_classification", "multilabel")
"""Tasks whose predictions belong to graphs; the others' belong to nodes."""


class Readout(nn.Module):
    """Predictions for graphs or nodes, whichever the task asks for."""

    def __init__(self, config: ModelConfig, dataset: DatasetConfig) -> None:
        super().__init__()
        self.pooling = config.pooling if dataset.task in ON_GRAPHS else None
        self.head = HEADS[config.head](config, dataset.outputs or config.width)

    def forward(self, x: Tensor, nodes: Membership) -> Tensor:
        """(B, outputs), or (N, outputs) for tasks on nodes.

        Args:
            x: (N, D) node states.
            nodes: which nodes belong to which graph.
        """
        if self.pooling is not None:
            x = pool(x, nodes, self.pooling)
        out: Tensor = self.head(x)
        return out


class GraphGymHead(nn.Module):
    """Hidden layers of full width with ReLU, each row then divided by its length; a linear map.

    A row of zeros stays zero and gets no gradient, where the reference multiplies it by 1e12.
    """

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        hidden = [nn.Linear(config.width, config.width) for _ in range(config.head_layers - 1)]
        self.hidden = nn.ModuleList(hidden)
        self.out = nn.Linear(config.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.hidden:
            x = l2_normalize(F.relu(linear(x)))
        predictions: Tensor = self.out(x)
        return predictions


class SanHead(nn.Module):
    """Two hidden layers, each half as wide as what comes before, and a linear map."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        width = config.width
        self.activation = ACTIVATIONS[config.activation]
        self.hidden = nn.ModuleList(
            [nn.Linear(width, width // 2), nn.Linear(width // 2, width // 4)]
        )
        self.out = nn.Linear(width // 4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.hidden:
            x = self.activation(linear(x))
        predictions: Tensor = self.out(x)
        return predictions


class PlainHead(nn.Module):
    """Hidden layers of full width and a linear map, each behind dropout."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        hidden = [nn.Linear(config.width, config.width) for _ in range(config.head_layers - 1)]
        self.hidden = nn.ModuleList(hidden)
        self.out = nn.Linear(config.width, outputs)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.hidden:
            x = self.activation(linear(self.dropout(x)))
        predictions: Tensor = self.out(self.dropout(x))
        return predictions


HEADS: dict[str, type[nn.Module]] = {
    "graphgym": GraphGymHead,
    "san": SanHead,
    "plain": PlainHead,
}


def pool(x: Tensor, nodes: Membership, how: str) -> Tensor:
    """(N, C) to (B, C): `sum` or `mean` over the nodes of each graph."""
    total = gather(x, nodes)
    return total / nodes.counts[:, None] if how == "mean" else total
