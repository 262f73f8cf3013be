"""Graphs cut out of a batch, for several devices that share it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data

_OF_NODES = ("x", "rwse", "lap_vectors", "lap_values")


def take_graphs(batch: Any, begin: int, end: int) -> Data:
    """Graphs `begin` to `end` - 1 of a batch, as a batch of their own.

    Args:
        batch: see :mod:`domains.graph.module`.
        begin: first graph.
        end: one past the last.

    Returns:
        The same attributes, and `whole_y`, the targets of the whole batch.
    """
    first, last = int(batch.ptr[begin]), int(batch.ptr[end])

    def inside(nodes: Tensor) -> Tensor:
        return (nodes >= first) & (nodes < last)

    ptr = batch.ptr[begin : end + 1] - first
    part = Data(
        **{name: batch[name][first:last] for name in _OF_NODES if name in batch},
        batch=batch.batch[first:last] - begin,
        ptr=ptr,
        num_graphs=end - begin,
        max_nodes=int(ptr.diff().max()),
        split=batch.split,
    )
    kept = inside(batch.edge_index[0])
    part.edge_index = batch.edge_index[:, kept] - first
    if "edge_attr" in batch:
        part.edge_attr = batch.edge_attr[kept]
    if "y" in batch:
        of_nodes = len(batch.y) == len(batch.x)
        part.y = batch.y[first:last] if of_nodes else batch.y[begin:end]
        part.whole_y = batch.y
    if "contacts" in batch:
        kept = inside(batch.contacts[0])
        part.contacts = batch.contacts[:, kept] - first
        part.contact_graph = batch.contact_graph[kept] - begin
        kept = inside(batch.pairs[0])
        part.pairs, part.pair_label = batch.pairs[:, kept] - first, batch.pair_label[kept]
    return part
