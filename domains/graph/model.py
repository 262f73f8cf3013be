"""The GPS model: encoders, layers of message passing and attention, a read-out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attention import AttentionFactory
from domains.graph.config import DatasetConfig, ModelConfig
from domains.graph.edges import Edges, sorted_membership
from domains.graph.encoders import EdgeEncoder, NodeEncoder
from domains.graph.heads import Readout
from domains.graph.layers import GPSLayer
from domains.graph.layout import Layout


class GPSModel(nn.Module):
    """Predictions for the graphs or nodes of a batch.

    Source: Rampasek et al. 2022, arXiv 2205.12454; rampasek/GraphGPS at 2801570,
    `graphgps/network/gps_model.py`.

    Args:
        config: sizes and choices.
        dataset: what the features are and what is predicted.
        attention: builds the attention of every layer.

    Raises:
        ValueError: model and data set do not fit together.
    """

    def __init__(
        self, config: ModelConfig, dataset: DatasetConfig, attention: AttentionFactory
    ) -> None:
        super().__init__()
        self.packing = config.packing
        self.nodes = NodeEncoder(config, dataset)
        self.edges = EdgeEncoder(config, dataset)
        self.layers = nn.ModuleList(
            GPSLayer(config, attention, layer) for layer in range(config.layers)
        )
        self.readout = Readout(config, dataset)

    def forward(self, batch: Any) -> Tensor:
        """(B, outputs), (N, outputs), or (N, D) where pairs of nodes are predicted.

        Args:
            batch: graphs as the loaders of this domain give them, see
                :mod:`domains.graph.module`.
        """
        x, edge = self.nodes(batch), self.edges(batch)
        edges = Edges(batch.edge_index, len(x))
        layout = Layout(self.packing, batch.ptr)
        for layer in self.layers:
            x, edge = layer(x, edge, edges, layout, batch.batch)
        out: Tensor = self.readout(x, sorted_membership(batch.batch, batch.ptr))
        return out
