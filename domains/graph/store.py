"""A split of graphs as a few long tensors, and batches cut out of it without a loop over graphs.

Shapes: G graphs, N nodes, E directed edges and C contacts of all graphs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

SPLITS = ("train", "val", "test")

AXES: Mapping[str, str] = {
    "x": "node",
    "node_y": "node",
    "rwse": "node",
    "lap_vectors": "node",
    "edges": "edge",
    "edge_attr": "edge",
    "graph_y": "graph",
    "lap_values": "graph",
    "contacts": "contact",
}
"""What the rows of each array are."""


@dataclass(frozen=True)
class PackedGraphs:
    """Graphs side by side. Nodes are numbered from 0 inside each graph.

    Attributes:
        arrays: `x` (N, F) node features; `edges` (E, 2) source and target; and, where the set has
            them, `edge_attr` (E, K), `node_y` (N,), `graph_y` (G, T) or (G,), `contacts` (C, 2)
            directed pairs, `rwse` (N, steps), `lap_vectors` (N, pairs), `lap_values` (G, pairs).
            Of any integer or float type.
        ptr: for each axis but `graph`, (G + 1,) int64 on the host: graph g has the rows
            ptr[g]:ptr[g + 1].
    """

    arrays: Mapping[str, Tensor]
    ptr: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.ptr["node"]) - 1

    def counts(self, axis: str) -> Tensor:
        """(G,) rows of each graph."""
        return self.ptr[axis].diff()

    def rows(self, axis: str, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of some graphs, one graph after the other, on the device of the arrays.

        Args:
            axis: `node`, `edge` or `contact`.
            index: (B,) int64 numbers of graphs, on the host.

        Returns:
            (R,) int64 rows, and (B,) their number for each graph, on the host.
        """
        ptr = self.ptr[axis]
        starts = ptr[index]
        counts = ptr[index + 1] - starts
        # Row r of graph b is starts[b] + r - (rows before graph b): one shift for each graph.
        shift = starts - (counts.cumsum(0) - counts)
        rows = torch.arange(int(counts.sum()), device=self.device)
        return rows.add_(spread(shift, counts, self.device)), counts

    @property
    def device(self) -> torch.device:
        return self.arrays["x"].device

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.numel() * array.element_size() for array in self.arrays.values())

    def to(self, device: torch.device) -> PackedGraphs:
        """The same with its arrays on `device`; contacts and `ptr` stay on the host.

        Negative pairs are drawn on the host, and sizes are looked at there: the device never has
        to wait for an answer.
        """
        moved = {n: a if n == "contacts" else a.to(device) for n, a in self.arrays.items()}
        return PackedGraphs(moved, self.ptr)

    def part(self, first: int, last: int) -> PackedGraphs:
        """Graphs first to last - 1, as views."""
        arrays = {}
        for name, array in self.arrays.items():
            axis = AXES[name]
            begin, end = first, last
            if axis != "graph":
                begin, end = int(self.ptr[axis][first]), int(self.ptr[axis][last])
            arrays[name] = array[begin:end]
        ptr = {axis: p[first : last + 1] - p[first] for axis, p in self.ptr.items()}
        return PackedGraphs(arrays, ptr)

    def select(self, index: Tensor) -> PackedGraphs:
        """Copies of the graphs with the given numbers, in this order."""
        rows = {"graph": index}
        ptr = {}
        for axis in self.ptr:
            rows[axis], counts = self.rows(axis, index)
            ptr[axis] = pointer(counts)
        arrays = {name: array[rows[AXES[name]]] for name, array in self.arrays.items()}
        return PackedGraphs(arrays, ptr)

    def take(self, index: Tensor) -> Data:
        """A batch of graphs with global node numbers; integers become int64.

        Args:
            index: (B,) int64 numbers of graphs, on the host.

        Returns:
            `x`, `edge_index` (2, R), `batch` (sorted), `ptr` (B + 1,), `num_graphs`, `max_nodes`
            (int, of the largest graph), and what the set has of `edge_attr`, `y`, `rwse`,
            `lap_vectors`, `lap_values` (a row for each node), and `contacts` (2, C),
            `contact_graph` (C,), both on the host.
        """
        taken: dict[str, Tensor] = {}
        rows = {"graph": index.to(self.device)}
        counts: dict[str, Tensor] = {}
        for axis in self.ptr:
            if axis != "contact":
                rows[axis], counts[axis] = self.rows(axis, index)
        for name, array in self.arrays.items():
            if name != "contacts":
                taken[name] = array.index_select(0, rows[AXES[name]])
        ptr = pointer(counts["node"])
        graphs = torch.arange(len(index))
        # Adding the offsets turns the compact integers into int64, and pairs into two rows.
        offset = spread(ptr[:-1], counts["edge"], self.device)
        source, target = taken.pop("edges").unbind(1)
        batch = Data(
            x=_wide(taken.pop("x")),
            edge_index=torch.stack([source + offset, target + offset]),
            batch=spread(graphs, counts["node"], self.device),
            ptr=ptr.to(self.device),
            num_graphs=len(index),
            max_nodes=int(counts["node"].max()),
        )
        if "lap_values" in taken:
            taken["lap_values"] = taken["lap_values"][batch.batch]
        for name, array in taken.items():
            batch[name.removeprefix("node_").removeprefix("graph_")] = _wide(array)
        if "contacts" in self.arrays:
            batch.contacts, batch.contact_graph = self._contacts(index, ptr)
        return batch

    def _contacts(self, index: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
        """(2, C) pairs by global node number, and (C,) the graph in the batch of each."""
        host = PackedGraphs({"x": self.arrays["contacts"]}, self.ptr)
        rows, counts = host.rows("contact", index)
        graph = spread(torch.arange(len(index)), counts, rows.device)
        one, other = self.arrays["contacts"].index_select(0, rows).unbind(1)
        return torch.stack([one + ptr[graph], other + ptr[graph]]), graph


def _wide(array: Tensor) -> Tensor:
    """Floats as they are, integers as int64."""
    return array if array.is_floating_point() else array.to(torch.int64)


def spread(values: Tensor, counts: Tensor, device: torch.device) -> Tensor:
    """values[b] repeated counts[b] times, on `device`. Both arguments are on the host."""
    total = int(counts.sum())
    return torch.repeat_interleave(values.to(device), counts.to(device), output_size=total)


def pointer(counts: Tensor) -> Tensor:
    """(B + 1,) int64 running total of (B,) counts, from 0."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def pack(graphs: Sequence[Mapping[str, Tensor]]) -> PackedGraphs:
    """Graphs given one by one, each as the rows of its arrays (`graph_y`: its single row)."""
    arrays = {name: torch.cat([graph[name] for graph in graphs]) for name in graphs[0]}
    ptr = {}
    for axis, name in (("node", "x"), ("edge", "edges"), ("contact", "contacts")):
        if name in arrays:
            ptr[axis] = pointer(torch.tensor([len(graph[name]) for graph in graphs]))
    return PackedGraphs(arrays, ptr)
