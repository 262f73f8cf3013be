"""PATTERN and CLUSTER: the published procedure and the statistics of the published sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from domains.graph import sbm
from domains.graph.sbm import generate
from domains.graph.store import PackedGraphs

from .graphs import dataset

SIZES = {"train": 400, "val": 100, "test": 100}

COMMUNITY_MEAN, COMMUNITY_VARIANCE = 19.5, (30**2 - 1) / 12
"""Of a uniform size from 5 to 34."""


@pytest.fixture(scope="module")
def pattern() -> dict[str, PackedGraphs]:
    return generate("pattern", SIZES, seed=0)


@pytest.fixture(scope="module")
def cluster() -> dict[str, PackedGraphs]:
    return generate("cluster", SIZES, seed=0)


def adjacency_and_labels(graphs: PackedGraphs, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    graph = graphs.part(number, number + 1)
    nodes = int(graph.ptr["node"][1])
    edges = graph.arrays["edges"].long()
    adjacency = torch.zeros(nodes, nodes, dtype=torch.int64)
    adjacency.index_put_((edges[:, 0], edges[:, 1]), torch.ones(len(edges)).long(), True)
    return adjacency, graph.arrays["node_y"].long()


def density(graphs: PackedGraphs, rows: int | None, columns: int | None) -> float:
    """Share of pairs of different nodes that are joined; None stands for equal labels."""
    joined = pairs = 0
    for number in range(len(graphs)):
        adjacency, label = adjacency_and_labels(graphs, number)
        chosen = label[:, None] == label
        if rows is not None:
            chosen = (label[:, None] == rows) & (label == columns)
        chosen.fill_diagonal_(False)
        joined += int(adjacency[chosen].sum())
        pairs += int(chosen.sum())
    return joined / pairs


@pytest.mark.parametrize("name", ["pattern", "cluster"])
def test_graphs_are_undirected_and_simple(name, request):
    graphs = request.getfixturevalue(name)["val"]
    for number in range(0, 100, 7):
        adjacency, _ = adjacency_and_labels(graphs, number)
        assert torch.equal(adjacency, adjacency.T)
        assert int(adjacency.max()) == 1
        assert int(adjacency.diagonal().sum()) == 0


def test_edge_rates_of_pattern(pattern):
    graphs = pattern["train"].part(0, 150)
    assert density(graphs, 1, 0) == pytest.approx(0.5, abs=0.005)
    # Patterns repeat, so that few independent pairs are behind the first of these.
    assert density(graphs, 1, 1) == pytest.approx(0.5, abs=0.03)
    # Inside and between communities: 0.5 and 0.35, in the proportion of their pairs.
    m, v = COMMUNITY_MEAN, COMMUNITY_VARIANCE
    inside, between = 5 * (v + m * m - m), 20 * m * m
    expected = (0.5 * inside + 0.35 * between) / (inside + between)
    assert density(graphs, 0, 0) == pytest.approx(expected, abs=0.004)


def test_edge_rates_of_cluster(cluster):
    graphs = cluster["train"].part(0, 150)
    assert density(graphs, None, None) == pytest.approx(0.55, abs=0.005)
    others = [density(graphs, i, j) for i in range(6) for j in range(6) if i != j]
    assert np.mean(others) == pytest.approx(0.25, abs=0.003)


def test_nodes_of_cluster_know_nothing_but_one_in_each_community(cluster):
    for graphs in cluster.values():
        x, label = graphs.arrays["x"].long(), graphs.arrays["node_y"].long()
        assert (x.sum(1) == 1).all()
        signal = x.argmax(1)
        assert torch.bincount(signal)[1:].tolist() == [len(graphs)] * 6
        told = signal > 0
        assert torch.equal(signal[told], label[told] + 1)


def test_signals_of_pattern_are_uniform_and_tell_nothing(pattern):
    x, label = pattern["train"].arrays["x"].double(), pattern["train"].arrays["node_y"].bool()
    for part in (x[label], x[~label]):
        torch.testing.assert_close(
            part.mean(0), torch.full((3,), 1 / 3).double(), atol=0.05, rtol=0
        )
    assert (x.sum(1) == 1).all()


def test_every_pattern_is_hidden_in_all_splits_equally_often(pattern):
    """The published sets hide the same 100 patterns in training and in test graphs."""

    def patterns(graphs: PackedGraphs) -> list[tuple]:
        found = []
        for number in range(len(graphs)):
            adjacency, label = adjacency_and_labels(graphs, number)
            inner = adjacency[label == 1][:, label == 1]
            found.append((len(inner), *sorted(inner.sum(0).tolist())))
        return found

    by_split = {split: patterns(graphs) for split, graphs in pattern.items()}
    assert by_split["val"] == by_split["test"]
    assert by_split["train"][::4] == by_split["val"]
    assert by_split["train"][1::4] == by_split["val"]
    assert len(set(by_split["val"])) > 90


def test_nodes_stand_in_random_order(pattern, cluster):
    for graphs in (pattern["train"], cluster["train"]):
        label = graphs.arrays["node_y"].double()
        for end in (graphs.ptr["node"][:-1], graphs.ptr["node"][1:] - 1):
            assert abs(float(label[end].mean() - label.mean())) < 4 * float(label.std()) / 20


def test_sizes_of_cluster_are_those_of_the_published_set():
    """Means of section sizes within four standard errors of 12,000 graphs and ours."""
    config = dataset("cluster")
    graphs = generate("cluster", {"train": 1500}, seed=1)["train"]
    for axis, published in (("node", config.mean_nodes), ("edge", config.mean_edges)):
        counts = graphs.counts(axis).double()
        error = float(counts.std()) * (1 / 1500 + 1 / 12_000) ** 0.5
        assert abs(float(counts.mean()) - published) < 4 * error, axis


def test_sizes_of_pattern_are_those_of_the_published_set():
    """Its mean depends on the sizes of 100 patterns, so that it scatters by 0.9 nodes.

    Given the mean size of the published patterns, the procedure must lead to the published number
    of edges; given ours, to ours.
    """
    config = dataset("pattern")
    graphs = generate("pattern", {"train": 1500}, seed=1)["train"]
    nodes, edges = (float(graphs.counts(axis).double().mean()) for axis in ("node", "edge"))
    m, v = COMMUNITY_MEAN, COMMUNITY_VARIANCE
    scatter = (v / sbm.PATTERN_COUNT + 5 * v / 1500) ** 0.5
    assert abs(nodes - config.mean_nodes) < 3 * 2**0.5 * scatter

    def expected_edges(mean_nodes: float) -> float:
        size = mean_nodes - 5 * m
        inside = 5 * 0.5 * (v + m * m - m) + 20 * 0.35 * m * m
        return inside + 2 * 0.5 * 5 * m * size + 0.5 * (v + size * size - size)

    assert expected_edges(config.mean_nodes) == pytest.approx(config.mean_edges, rel=0.005)
    assert expected_edges(nodes) == pytest.approx(edges, rel=0.02)


@pytest.mark.parametrize("name", ["pattern", "cluster"])
def test_a_seed_decides_everything_and_splits_differ(name):
    sizes = {"train": 5, "val": 5}
    one, again = generate(name, sizes, 0), generate(name, sizes, 0)
    other = generate(name, sizes, 1)
    for split in sizes:
        for key, array in one[split].arrays.items():
            assert torch.equal(array, again[split].arrays[key])
        assert not torch.equal(one[split].ptr["edge"], other[split].ptr["edge"])
    assert not torch.equal(one["train"].ptr["edge"], one["val"].ptr["edge"])


@pytest.mark.parametrize("size", [1, 7, 100, 150])
def test_any_number_of_graphs_can_be_had(size):
    graphs = generate("pattern", {"train": size}, 0)["train"]
    assert len(graphs) == size
    assert graphs.arrays["x"].shape[1] == 3
