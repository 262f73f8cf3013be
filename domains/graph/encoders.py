"""From the features of nodes and edges to the states that the layers work on.

Source: rampasek/GraphGPS at 2801570, `graphgps/encoder/`, and torch_geometric 2.8
`graphgym/models/encoder.py` (embeddings of molecules); initial values are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.edges import membership, spread
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES


class NodeEncoder(nn.Module):
    """Embedded features, and beside them the positional encoding.

    Raises:
        ValueError: the encoding needs what the data set does not prepare, or constants of the
            standardisation do not fit the features.
    """

    def __init__(self, config: ModelConfig, dataset: DatasetConfig) -> None:
        super().__init__()
        encoded = 0 if config.encoding == "none" else config.encoding_width
        width = config.width - encoded
        self.features: nn.Module
        if dataset.features == "atom":
            self.features = Embeddings(ATOM_TYPES, width, xavier=True)
        elif dataset.features == "categorical":
            assert dataset.node_types is not None
            self.features = Embeddings([dataset.node_types], width, xavier=False)
        else:
            assert dataset.node_width is not None
            self.features = nn.Sequential(
                *_standardise("node", config.node_mean, config.node_sd, dataset.node_width),
                nn.Linear(dataset.node_width, width),
            )
        self.encoding: nn.Module | None = None
        if config.encoding == "rwse":
            _require("rwse", "rwse_steps", dataset.rwse_steps)
            self.encoding = RandomWalkEncoder(dataset.rwse_steps, encoded)
        elif config.encoding == "lappe":
            _require("lappe", "lap_pairs", dataset.lap_pairs)
            self.encoding = LaplacianEncoder(encoded)

    def forward(self, batch: Any) -> Tensor:
        """(N, width)."""
        features: Tensor = self.features(batch.x)
        if self.encoding is None:
            return features
        return torch.cat([features, self.encoding(batch)], dim=1)


class EdgeEncoder(nn.Module):
    """Embedded features of the edges; one learned vector for all where they have none."""

    def __init__(self, config: ModelConfig, dataset: DatasetConfig) -> None:
        super().__init__()
        self.features: nn.Module | None
        if dataset.features == "atom":
            self.features = Embeddings(BOND_TYPES, config.width, xavier=True)
        elif dataset.features == "categorical":
            assert dataset.edge_types is not None
            self.features = Embeddings([dataset.edge_types], config.width, xavier=False)
        elif dataset.edge_width is not None:
            self.features = nn.Sequential(
                *_standardise("edge", config.edge_mean, config.edge_sd, dataset.edge_width),
                nn.Linear(dataset.edge_width, config.width),
            )
        else:
            self.shared = nn.Embedding(1, config.width)
            self.features = None

    def forward(self, batch: Any) -> Tensor:
        """(E, width)."""
        if self.features is None:
            return self.shared.weight.expand(batch.edge_index.shape[1], -1)
        edges: Tensor = self.features(batch.edge_attr)
        return edges


class Embeddings(nn.Module):
    """(N, F) integers to (N, width): the sum of one embedding for each column.

    Args:
        vocabulary: number of values of each column.
        width: of the result.
        xavier: whether initial values are Xavier's instead of PyTorch's for embeddings.
    """

    def __init__(self, vocabulary: Sequence[int], width: int, *, xavier: bool) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(values, width) for values in vocabulary)
        if xavier:
            for column in self.columns:
                nn.init.xavier_uniform_(column.weight)

    def forward(self, values: Tensor) -> Tensor:
        first, *others = (
            # On a CPU the derivative of `spread` takes a tenth of the time of the embedding's own.
            spread(embed.weight, membership(column, embed.num_embeddings))
            for embed, column in zip(self.columns, values.unbind(1), strict=True)
        )
        return sum(others, first)


class Standardise(nn.Module):
    """Takes fixed means off the columns and divides them by fixed standard deviations."""

    mean: Tensor
    sd: Tensor

    def __init__(self, mean: Sequence[float], sd: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("sd", torch.tensor(sd), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.sd


class RandomWalkEncoder(nn.Module):
    """Return probabilities of random walks through a batch norm and a linear map.

    Args:
        steps: probabilities a node.
        width: of the result.
    """

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(steps)
        self.map = nn.Linear(steps, width)

    def forward(self, batch: Any) -> Tensor:
        """(N, width) from `rwse` (N, steps)."""
        encoded: Tensor = self.map(self.norm(batch.rwse))
        return encoded


class LaplacianEncoder(nn.Module):
    """Eigenpairs of the Laplacian, each encoded by itself and summed (a DeepSet).

    In training the sign of every eigenvector index is drawn anew for each batch, one for all its
    graphs. Pairs that a graph is too small to have come as NaN and count nothing.

    Args:
        width: of the result.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(2, 2 * width)
        self.contract = nn.Linear(2 * width, width)

    def forward(self, batch: Any) -> Tensor:
        """(N, width) from `lap_vectors` and `lap_values`, both (N, pairs)."""
        vectors = batch.lap_vectors
        if self.training:
            signs = torch.rand(vectors.shape[1], device=vectors.device) >= 0.5
            vectors = torch.where(signs, vectors, -vectors)
        missing = vectors.isnan()
        pairs = torch.stack([vectors, batch.lap_values], dim=2)
        pairs = pairs.masked_fill(missing[..., None], 0.0)
        encoded = self.contract(self.expand(pairs).relu()).relu()
        return encoded.masked_fill(missing[..., None], 0.0).sum(1)


def _standardise(
    what: str, mean: Sequence[float], sd: Sequence[float], width: int
) -> list[Standardise]:
    if not mean:
        return []
    if len(mean) != width:
        raise ValueError(
            f"model.{what}_mean has {len(mean)} numbers, dataset.{what}_width={width}; give as many"
        )
    return [Standardise(mean, sd)]


def _require(encoding: str, key: str, prepared: int) -> None:
    if prepared < 1:
        raise ValueError(
            f"model.encoding={encoding} reads what dataset.{key}={prepared} does not prepare; set "
            f"dataset.{key} to at least 1, or choose another model.encoding"
        )
