"""PATTERN and CLUSTER by the published procedure: stochastic block models, drawn here anew.

Source of procedure and parameters: Dwivedi et al. 2020, arXiv 2003.00982, appendix on SBM sets, and
graphdeeplearning/benchmarking-gnns at b6c4077, `data/SBMs/generate_SBM_PATTERN.ipynb` and
`generate_SBM_CLUSTER.ipynb`. The published graphs were drawn without a seed, so that these are
other draws of the same distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domains.common.seeds import derive
from domains.graph.store import PackedGraphs, pack

SMALLEST, LARGEST = 5, 34
"""Nodes of a community or pattern, uniform. The notebooks write 5 and 35, the latter excluded."""

PATTERN_COMMUNITIES = 5
PATTERN_INSIDE, PATTERN_BETWEEN = 0.5, 0.35
"""Probability of an edge inside a community, and between two."""
PATTERN_OWN, PATTERN_OUT = 0.5, 0.5
"""Probability of an edge inside the pattern, and between the pattern and the rest."""
PATTERN_COUNT = 100
"""Different patterns; each is hidden in as many graphs of every split."""
PATTERN_SIGNALS = 3
"""Values of the random signal that is all a node knows."""

CLUSTER_COMMUNITIES = 6
CLUSTER_INSIDE, CLUSTER_BETWEEN = 0.55, 0.25

Graph = Mapping[str, Tensor]


def generate(name: str, sizes: Mapping[str, int], seed: int) -> dict[str, PackedGraphs]:
    """All splits of a set.

    Args:
        name: `pattern` or `cluster`.
        sizes: graphs by split.
        seed: of the generator. Splits draw from streams of their own.

    Returns:
        `x` (N, 3 or 7) one-hot and `node_y` (N,), both uint8, and `edges` (E, 2) int16 in both
        directions.
    """
    graphs = {"pattern": _patterns, "cluster": _clusters}[name]
    return {split: pack(list(graphs(split, size, seed))) for split, size in sizes.items()}


def _patterns(split: str, size: int, seed: int) -> Iterator[Graph]:
    """Graphs with a pattern: label 1 are its nodes.

    The same patterns, wiring and signal, are hidden in all splits, in blocks of equally many
    graphs; the graphs around them differ.
    """
    rng = np.random.default_rng(derive(seed, "pattern", "instances"))
    instances = []
    for _ in range(PATTERN_COUNT):
        nodes = rng.integers(SMALLEST, LARGEST + 1)
        wiring = _symmetric(rng, np.full((nodes, nodes), PATTERN_OWN))
        instances.append((wiring, rng.integers(PATTERN_SIGNALS, size=nodes)))
    rng = np.random.default_rng(derive(seed, "pattern", split))
    for number in range(size):
        wiring, own_signal = instances[number * PATTERN_COUNT // size]
        community = _communities(rng, PATTERN_COMMUNITIES)
        around = len(community)
        rate = np.full((around + len(wiring),) * 2, PATTERN_OUT)
        same = community[:, None] == community
        rate[:around, :around] = np.where(same, PATTERN_INSIDE, PATTERN_BETWEEN)
        adjacency = _symmetric(rng, rate)
        adjacency[around:, around:] = wiring
        signal = np.concatenate([rng.integers(PATTERN_SIGNALS, size=around), own_signal])
        label = np.arange(len(rate)) >= around
        order = rng.permutation(len(rate))
        yield _graph(adjacency, signal, PATTERN_SIGNALS, label, order)


def _clusters(split: str, size: int, seed: int) -> Iterator[Graph]:
    """Graphs of six communities, which are the labels; one node of each knows its own.

    The signal is 0, or 1 + the community for the nodes that know it.
    """
    rng = np.random.default_rng(derive(seed, "cluster", split))
    for _ in range(size):
        community = _communities(rng, CLUSTER_COMMUNITIES)
        same = community[:, None] == community
        adjacency = _symmetric(rng, np.where(same, CLUSTER_INSIDE, CLUSTER_BETWEEN))
        starts = np.searchsorted(community, np.arange(CLUSTER_COMMUNITIES))
        told = starts + rng.integers(np.bincount(community))
        signal = np.zeros(len(community), np.int64)
        signal[told] = np.arange(1, CLUSTER_COMMUNITIES + 1)
        order = rng.permutation(len(community))
        yield _graph(adjacency, signal, CLUSTER_COMMUNITIES + 1, community, order)


def _communities(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Community of every node, ascending."""
    return np.repeat(np.arange(count), rng.integers(SMALLEST, LARGEST + 1, size=count))


def _symmetric(rng: np.random.Generator, rate: NDArray[np.float64]) -> NDArray[np.bool_]:
    """An undirected graph without loops; (n, n) `rate` is the probability of every edge."""
    upper = np.triu(rng.random(rate.shape) < rate, k=1)
    return upper | upper.T


def _graph(
    adjacency: NDArray[np.bool_],
    signal: NDArray[np.int64],
    signals: int,
    label: NDArray[np.generic],
    order: NDArray[np.int64],
) -> Graph:
    """The arrays of a graph whose nodes are put into `order`."""
    edges = np.argwhere(adjacency[order][:, order]).astype(np.int16)
    one_hot = (signal[order, None] == np.arange(signals)).astype(np.uint8)
    return {
        "x": torch.from_numpy(one_hot),
        "edges": torch.from_numpy(edges),
        "node_y": torch.from_numpy(label[order].astype(np.uint8)),
    }
