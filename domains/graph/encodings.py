"""Positional encodings of whole splits: random-walk return probabilities, Laplacian eigenpairs.

Both are computed in float64 and kept in float32. Source of both definitions: rampasek/GraphGPS at
2801570, `graphgps/transform/posenc_stats.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from domains.graph.store import PackedGraphs, pointer

DENSE_ENTRIES = 2**22
"""Entries of the padded adjacency matrices that are multiplied at once: 32 MB in float64."""

UNDIRECTED_SAMPLE = 10
"""Whether a set counts as undirected is decided from this many graphs, as GraphGPS does."""


def rwse(edge_index: Tensor, num_nodes: int, steps: int) -> Tensor:
    """:func:`random_walk_returns` of a single graph.

    Args:
        edge_index: (2, E) int64 source and target.
        num_nodes: N.
        steps: longest walk.

    Returns:
        (N, steps) float32.
    """
    return random_walk_returns(_single(edge_index, num_nodes), steps)


def laplacian_eigenpairs(
    edge_index: Tensor, num_nodes: int, pairs: int, undirected: bool
) -> tuple[Tensor, Tensor]:
    """:func:`smallest_eigenpairs` of a single graph.

    Args:
        edge_index: (2, E) int64 source and target.
        num_nodes: N.
        pairs: how many.
        undirected: whether the set counts as undirected.

    Returns:
        (N, pairs) eigenvectors in columns, (pairs,) eigenvalues; both float32.
    """
    vectors, values = smallest_eigenpairs(_single(edge_index, num_nodes), pairs, undirected)
    return vectors, values[0]


def random_walk_returns(graphs: PackedGraphs, steps: int) -> Tensor:
    """Probability that a walk from a node is back there after 1 to `steps` steps.

    Column k - 1 is the diagonal of P^k with P = D^-1 A, A[source, target] and D the out-degrees;
    directed edges count as they are, repeated ones as often as they occur. A node without outgoing
    edges has a zero row.

    Returns:
        (N, steps) float32.
    """
    out = torch.empty(int(graphs.ptr["node"][-1]), steps)
    for index in _of_similar_size(graphs.counts("node")):
        part = graphs.select(index)
        nodes = part.counts("node")
        size = int(nodes.max())
        graph = torch.repeat_interleave(torch.arange(len(index)), part.counts("edge"))
        source, target = part.arrays["edges"].to(torch.int64).unbind(1)
        walk = torch.zeros(len(index), size, size, dtype=torch.float64)
        one = torch.ones((), dtype=torch.float64).expand(len(graph))
        walk.index_put_((graph, source, target), one, accumulate=True)
        walk /= walk.sum(dim=2, keepdim=True).clamp(min=1.0)
        power = walk
        returns = torch.empty(len(index), size, steps)
        for step in range(steps):
            returns[..., step] = power.diagonal(dim1=1, dim2=2)
            power = power @ walk if step + 1 < steps else power
        rows, _ = graphs.rows("node", index)
        out[rows] = returns[torch.arange(size) < nodes[:, None]]
    return out


def _of_similar_size(nodes: Tensor) -> Iterator[Tensor]:
    """Numbers of graphs in groups that waste little when padded to their largest."""
    order = torch.argsort(nodes, stable=True)
    first = 0
    while first < len(order):
        # Sizes ascend, so a group of k graphs has k times its last one squared entries.
        entries = torch.arange(1, len(order) - first + 1) * nodes[order[first:]] ** 2
        fitting = max(1, int((entries <= DENSE_ENTRIES).sum()))
        yield order[first : first + fitting]
        first += fitting


def smallest_eigenpairs(
    graphs: PackedGraphs, pairs: int, undirected: bool
) -> tuple[Tensor, Tensor]:
    """Eigenvectors and eigenvalues of the unnormalised Laplacian D - A, smallest first.

    The trivial pair is among them, eigenvalues are not below 0, eigenvectors have length 1, and
    graphs with fewer nodes than pairs are filled up with NaN. Eigenvectors are what LAPACK returns:
    unique neither in sign nor inside the space of a repeated eigenvalue.

    Args:
        graphs: any.
        pairs: how many.
        undirected: whether the set counts as undirected; otherwise an edge in one direction counts
            for both. Self-loops never count.

    Returns:
        (N, pairs) and (G, pairs) float32.
    """
    vectors = np.full((int(graphs.ptr["node"][-1]), pairs), np.nan, np.float32)
    values = np.full((len(graphs), pairs), np.nan, np.float32)
    edges = graphs.arrays["edges"].numpy()
    nodes, edge_ptr = graphs.ptr["node"].tolist(), graphs.ptr["edge"].tolist()
    for graph in range(len(graphs)):
        size = nodes[graph + 1] - nodes[graph]
        own = edges[edge_ptr[graph] : edge_ptr[graph + 1]].astype(np.int64)
        kept = min(pairs, size)
        # A subset is several times faster than all pairs from about 100 nodes on.
        found, columns = eigh(
            _laplacian(own, size, undirected),
            subset_by_index=(0, kept - 1),
            overwrite_a=True,
            check_finite=False,
        )
        values[graph, :kept] = found.clip(min=0.0)
        vectors[nodes[graph] : nodes[graph + 1], :kept] = columns
    return torch.from_numpy(vectors), torch.from_numpy(values)


def _laplacian(edges: NDArray[np.int64], size: int, undirected: bool) -> NDArray[np.float64]:
    """(size, size) D - A of one graph with (E, 2) edges."""
    # A loop adds as much to D as to A, and vanishes.
    cells = edges[:, 0] * size + edges[:, 1]
    adjacency = np.bincount(cells, minlength=size * size).astype(np.float64).reshape(size, size)
    if not undirected:
        adjacency = ((adjacency + adjacency.T) > 0).astype(np.float64)
    laplacian: NDArray[np.float64] = np.diag(adjacency.sum(axis=1)) - adjacency
    return laplacian


def is_undirected(graphs: PackedGraphs) -> bool:
    """Whether the first ten graphs have every edge in both directions, equally often."""
    for number in range(min(UNDIRECTED_SAMPLE, len(graphs))):
        edges = graphs.part(number, number + 1).arrays["edges"].to(torch.int64)
        size = int(edges.max()) + 1 if len(edges) else 0
        there = torch.sort(edges[:, 0] * size + edges[:, 1]).values
        back = torch.sort(edges[:, 1] * size + edges[:, 0]).values
        if not torch.equal(there, back):
            return False
    return True


def _single(edge_index: Tensor, num_nodes: int) -> PackedGraphs:
    """One graph without features."""
    arrays = {"x": torch.zeros(num_nodes, 0), "edges": edge_index.t()}
    ptr = {
        axis: pointer(torch.tensor([rows]))
        for axis, rows in (("node", num_nodes), ("edge", edge_index.shape[1]))
    }
    return PackedGraphs(arrays, ptr)
