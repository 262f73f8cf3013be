"""Encodings: the reference's numbers, plain formulas, and graphs side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.transforms import AddRandomWalkPE

from domains.graph import encodings
from domains.graph.encodings import (
    is_undirected,
    laplacian_eigenpairs,
    random_walk_returns,
    rwse,
    smallest_eigenpairs,
)

from .graphs import packed, random_edges, zinc_like

VECTORS = Path(__file__).parents[2] / "vectors"
REFERENCE = (
    "path4", "cycle5", "star6", "two_components", "directed_knn5", "path3",
    "triangle_and_isolated", "single_node",
)  # fmt: skip
CLOSE = {"atol": 1e-6, "rtol": 0, "equal_nan": True}


@pytest.fixture(scope="module")
def stored():
    return np.load(VECTORS / "lappe_rwse.npz", allow_pickle=False)


def graph_of(stored, name: str) -> tuple[Tensor, int]:
    return torch.from_numpy(stored[f"{name}.edge_index"]), int(stored[f"{name}.num_nodes"])


@pytest.mark.parametrize("name", REFERENCE)
def test_walk_returns_equal_the_reference(stored, name):
    edge_index, nodes = graph_of(stored, name)
    expected = torch.from_numpy(stored[f"{name}.rwse"])
    assert stored["rwse_steps"].tolist() == list(range(1, 21))
    torch.testing.assert_close(rwse(edge_index, nodes, 20), expected, **CLOSE)


@pytest.mark.parametrize("name", REFERENCE)
def test_eigenpairs_equal_the_reference(stored, name):
    """Eigenvalues, simple eigenvectors up to sign, and the spaces of repeated eigenvalues."""
    edge_index, nodes = graph_of(stored, name)
    undirected = bool(stored[f"{name}.is_undirected"])
    vectors, values = laplacian_eigenpairs(edge_index, nodes, int(stored["max_freqs"]), undirected)
    expected = torch.from_numpy(stored[f"{name}.eigvals"])[0, :, 0]
    torch.testing.assert_close(values, expected.float(), **CLOSE)
    assert (values[~values.isnan()] >= 0.0).all()

    simple = torch.from_numpy(stored[f"{name}.column_is_simple"])
    size = torch.from_numpy(stored[f"{name}.eigvecs_abs"])
    torch.testing.assert_close(vectors.abs()[:, simple == 1], size[:, simple == 1], **CLOSE)
    assert vectors[:, simple == -1].isnan().all()

    columns = torch.from_numpy(stored[f"{name}.group_of_column"])
    projectors = torch.from_numpy(stored[f"{name}.group_projector"])
    for group, projector in enumerate(projectors):
        space = vectors[:, columns == group].double()
        torch.testing.assert_close(projector @ space, space, **CLOSE)
        torch.testing.assert_close(space.T @ space, torch.eye(space.shape[1]).double(), **CLOSE)
        if stored[f"{name}.group_size_kept"][group] == stored[f"{name}.group_size_full"][group]:
            torch.testing.assert_close(space @ space.T, projector, **CLOSE)


def test_a_path_of_three_by_hand():
    """Ends come back to themselves every second step, half of the time."""
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    expected = torch.tensor([[0.0, 0.5, 0.0, 0.5], [0.0, 1.0, 0.0, 1.0], [0.0, 0.5, 0.0, 0.5]])
    torch.testing.assert_close(rwse(edge_index, 3, 4), expected, atol=1e-7, rtol=0)
    vectors, values = laplacian_eigenpairs(edge_index, 3, 3, undirected=True)
    torch.testing.assert_close(values, torch.tensor([0.0, 1.0, 3.0]), atol=1e-6, rtol=0)
    expected = torch.tensor([[2.0, 3.0, 1.0], [2.0, 0.0, 4.0], [2.0, 3.0, 1.0]]) / 6.0
    torch.testing.assert_close(vectors.square(), expected, atol=1e-6, rtol=0)


def test_walks_equal_those_of_pytorch_geometric_on_simple_graphs():
    for graph in zinc_like(20, seed=3):
        graph.num_nodes = len(graph.x)
        ours = rwse(graph.edge_index, len(graph.x), 20)
        # Its matrix is A D^-1; the diagonals of its powers are the same.
        theirs = AddRandomWalkPE(20, "walk")(graph).walk
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        assert ((ours >= 0.0) & (ours <= 1.0 + 1e-6)).all()


@pytest.mark.parametrize("entries", [1, 200, 2**22])
def test_graphs_side_by_side_have_the_encodings_they_have_alone(monkeypatch, entries):
    monkeypatch.setattr(encodings, "DENSE_ENTRIES", entries)
    graphs = zinc_like(30, seed=1)
    together = packed(graphs)
    walks = random_walk_returns(together, 6)
    vectors, values = smallest_eigenpairs(together, 5, undirected=False)
    first = 0
    for number, graph in enumerate(graphs):
        nodes = len(graph.x)
        rows = slice(first, first + nodes)
        torch.testing.assert_close(walks[rows], rwse(graph.edge_index, nodes, 6))
        alone = laplacian_eigenpairs(graph.edge_index, nodes, 5, undirected=False)
        torch.testing.assert_close(vectors[rows], alone[0], equal_nan=True, atol=0, rtol=0)
        torch.testing.assert_close(values[number], alone[1], equal_nan=True, atol=0, rtol=0)
        first += nodes


@pytest.mark.parametrize("nodes", [40, 150])
def test_eigenvectors_of_larger_graphs_solve_the_equation(nodes):
    """Also where the graph falls apart, so that the smallest eigenvalue is repeated."""
    generator = torch.Generator().manual_seed(nodes)
    edges = random_edges(nodes, generator, rate=1.0 / nodes)
    vectors, values = laplacian_eigenpairs(edges, nodes, 10, undirected=False)
    adjacency = torch.zeros(nodes, nodes).double()
    adjacency[edges[0], edges[1]] = adjacency[edges[1], edges[0]] = 1.0
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    spectrum = torch.linalg.eigvalsh(laplacian)
    assert int((spectrum < 1e-9).sum()) > 1
    torch.testing.assert_close(values, spectrum[:10].float(), atol=1e-6, rtol=1e-6)
    vectors = vectors.double()
    close = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(laplacian @ vectors, vectors * values.double(), **close)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(10).double(), **close)


def test_directed_edges_count_for_both_directions_in_the_laplacian_alone():
    """Symptom: encodings of CIFAR10's nearest-neighbour graphs came from half a matrix."""
    one_way = torch.tensor([[0, 1], [1, 2]])
    both = torch.cat([one_way, one_way.flip(0)], dim=1)
    vectors, values = laplacian_eigenpairs(one_way, 3, 3, undirected=False)
    expected = laplacian_eigenpairs(both, 3, 3, undirected=True)
    torch.testing.assert_close((vectors, values), expected)
    assert rwse(one_way, 3, 3).eq(0.0).all()
    assert rwse(both, 3, 3)[1, 1] == 1.0


def test_loops_count_in_walks_and_not_in_the_laplacian():
    path = torch.tensor([[0, 1], [1, 0]])
    with_loop = torch.cat([path, torch.zeros(2, 1, dtype=torch.int64)], dim=1)
    for undirected in (True, False):
        torch.testing.assert_close(
            laplacian_eigenpairs(with_loop, 2, 2, undirected),
            laplacian_eigenpairs(path, 2, 2, undirected),
        )
    assert rwse(with_loop, 2, 1).flatten().tolist() == [0.5, 0.0]


def test_direction_is_decided_from_the_first_ten_graphs():
    undirected = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])

    def like(edges: Tensor):
        graph = zinc_like(1, sizes=(3, 4))[0]
        graph.edge_index, graph.edge_attr = edges, torch.ones(edges.shape[1])
        return graph

    some = [like(undirected) for _ in range(12)]
    assert is_undirected(packed(some))
    some[10] = like(undirected[:, :3])
    assert is_undirected(packed(some))
    some[9] = like(undirected[:, :3])
    assert not is_undirected(packed(some))
