"""Made-up graphs with the true shapes and types of each set, for smoke runs and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path
from scipy.spatial import Delaunay, KDTree
from torch import Tensor

from domains.common.seeds import derive
from domains.graph import sbm
from domains.graph.checks import check_graphs
from domains.graph.config import DatasetConfig
from domains.graph.encodings import is_undirected
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES
from domains.graph.prepare import PreparedSet, content_digest, encoded, fingerprint
from domains.graph.store import SPLITS, PackedGraphs, pack

SMALL, MIDDLE, LARGE = (48, 16, 16), (16, 8, 8), (6, 3, 3)
"""Graphs in training, validation and test, for sets of graphs of about 30, 130 and 480 nodes."""

CONTACT_DISTANCE = 5
"""Bonds between two atoms whose nearness counts as a contact, at least."""

CONTACTS = 4
"""Undirected contacts of a made-up molecule, at most."""

Arrays = dict[str, NDArray[np.generic]]
Rng = np.random.Generator


def tiny_set(config: DatasetConfig) -> PreparedSet:
    """A learnable set: targets are simple functions of types, rings, colours or communities.

    Raises:
        ValueError: not the name of a set.
    """
    if config.name not in MAKERS:
        raise ValueError(
            f"dataset.name={config.name!r} is no set of this domain; there are {', '.join(MAKERS)}"
        )
    sizes, make = MAKERS[config.name]
    by_split = dict(zip(SPLITS, sizes, strict=True))
    graphs = make(config, by_split)
    undirected = is_undirected(graphs["train"])
    splits = {}
    for name, part in graphs.items():
        check_graphs(config, part, f"made-up {config.name}, {name}")
        arrays = encoded(config, part, undirected)
        splits[name] = PackedGraphs({k: torch.from_numpy(v) for k, v in arrays.items()}, part.ptr)
    digests = {name: content_digest(part) for name, part in splits.items()}
    source = "made-up graphs with the set's shapes"
    return PreparedSet(splits, "synthetic", source, fingerprint(digests), ())


def _one_by_one(
    graph: Callable[[Rng, DatasetConfig], Arrays],
) -> Callable[[DatasetConfig, Mapping[str, int]], dict[str, PackedGraphs]]:
    """A maker of splits from a maker of graphs."""

    def make(config: DatasetConfig, sizes: Mapping[str, int]) -> dict[str, PackedGraphs]:
        splits = {}
        for split, size in sizes.items():
            rng = np.random.default_rng(derive(0, config.name, split))
            made = [graph(rng, config) for _ in range(size)]
            splits[split] = pack([_tensors(arrays) for arrays in made])
        return splits

    return make


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _block_models(config: DatasetConfig, sizes: Mapping[str, int]) -> dict[str, PackedGraphs]:
    return sbm.generate(config.name, sizes, seed=0)


def _both_ways(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """(2 E, 2) every undirected edge in both directions, one behind the other."""
    return np.stack([edges, edges[:, ::-1]], axis=1).reshape(-1, 2)


def _skeleton(
    rng: Rng, nodes: int, straight: float, rings: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A tree that grows at its end, with some rings of six.

    Args:
        rng: source of random numbers.
        nodes: of the tree.
        straight: probability that a node hangs on the one before it.
        rings: edges that are added, at most.

    Returns:
        (E, 2) undirected edges, and (nodes,) whether a node closes a ring.
    """
    back = np.where(rng.random(nodes) < straight, 1, rng.integers(1, 4, nodes))
    parent = np.maximum(np.arange(nodes) - back, 0)[1:]
    tree = np.stack([np.arange(1, nodes), parent], axis=1)
    ends = np.unique(rng.integers(5, nodes, rings))
    closing = np.stack([ends, ends - 5], axis=1)
    edges = np.unique(np.concatenate([tree, closing]), axis=0)
    in_ring = np.zeros(nodes, dtype=bool)
    in_ring[ends] = True
    return edges, in_ring


def _zinc(rng: Rng, config: DatasetConfig) -> Arrays:
    """About 23 atoms; the target counts rings and atoms of some types."""
    edges, in_ring = _skeleton(rng, int(rng.integers(15, 32)), 0.8, int(rng.integers(2, 5)))
    kinds = rng.integers(config.node_types or 1, size=len(in_ring))
    bonds = rng.integers(1, config.edge_types, size=len(edges))
    target = in_ring.sum() - 3.0 + 0.2 * ((kinds < 7).sum() - len(kinds) / 4)
    return {
        "x": kinds[:, None],
        "edges": _both_ways(edges),
        "edge_attr": bonds.repeat(2)[:, None],
        "graph_y": np.array([[target]]),
    }


def _molecule(
    rng: Rng, nodes: int, straight: float, rings: int
) -> tuple[Arrays, NDArray[np.int64]]:
    """Atoms and bonds in OGB's code, and the kind of every atom."""
    edges, in_ring = _skeleton(rng, nodes, straight, rings)
    x = rng.integers(ATOM_TYPES, size=(nodes, len(ATOM_TYPES)))
    x[:, 0] = rng.choice([5, 6, 7, 15], size=nodes)  # carbon, nitrogen, oxygen, sulphur
    x[:, -1] = in_ring
    bonds = rng.integers(BOND_TYPES, size=(len(edges), len(BOND_TYPES)))
    arrays: Arrays = {"x": x, "edges": _both_ways(edges), "edge_attr": bonds.repeat(2, axis=0)}
    return arrays, x[:, 0]


def _peptide(rng: Rng, config: DatasetConfig) -> Arrays:
    """About 150 atoms in a long chain; targets compare the counts of their kinds."""
    arrays, kinds = _molecule(rng, int(rng.integers(120, 181)), 0.9, 5)
    counts = np.array([(kinds == kind).mean() for kind in (5, 6, 7, 15)])
    weights = np.random.default_rng(derive(0, "targets")).normal(size=(4, config.targets or 1))
    scores = (counts - 0.25) @ weights * 10.0
    arrays["graph_y"] = scores[None] if config.task == "graph_regression" else (scores > 0)[None]
    return arrays


def _contact_molecule(rng: Rng, config: DatasetConfig) -> Arrays:
    """About 30 atoms; contacts are far pairs of equal kind, or any far pair where there is none."""
    arrays, kinds = _molecule(rng, int(rng.integers(22, 39)), 0.8, 2)
    edges = arrays["edges"]
    ones = np.ones(len(edges))
    nodes = len(kinds)
    distance = shortest_path(coo_array((ones, edges.T), shape=(nodes, nodes)), unweighted=True)
    far = np.triu(distance >= CONTACT_DISTANCE)
    pairs = np.argwhere(far & (kinds[:, None] == kinds))
    pairs = pairs if len(pairs) else np.argwhere(far)
    arrays["contacts"] = _both_ways(rng.permutation(pairs)[:CONTACTS])
    return arrays


def _superpixels(rng: Rng, config: DatasetConfig) -> Arrays:
    """About 480 regions of a picture; the nearest of a few seeds gives class and colour."""
    points = rng.uniform((0, 0), (500, 375), size=(int(rng.integers(460, 501)), 2))
    triangles = Delaunay(points).simplices
    sides = np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, ::2]]))
    edges = _both_ways(np.unique(sides, axis=0))
    seeds = rng.choice(points, size=4, replace=False)
    classes = rng.choice(config.classes or 1, size=len(seeds), replace=False)
    label = classes[KDTree(seeds).query(points)[1]]
    colours = np.random.default_rng(derive(0, "colours")).random((config.classes or 1, 12))
    x = np.concatenate([colours[label] + rng.normal(0, 0.1, (len(points), 12)), points], axis=1)
    length = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
    return {
        "x": x,
        "edges": edges,
        "edge_attr": np.stack([np.abs(x[edges[:, 0], 0] - x[edges[:, 1], 0]), length], axis=1),
        "node_y": label,
    }


def _neighbours(rng: Rng, config: DatasetConfig) -> Arrays:
    """118 points, each with an edge to its 8 nearest; the class is the mean colour."""
    points = rng.random((int(rng.integers(110, 126)), 2))
    distance, nearest = KDTree(points).query(points, k=9)
    source = np.arange(len(points)).repeat(8)
    label = rng.integers(config.classes or 1)
    colours = np.random.default_rng(derive(0, "colours")).random((config.classes or 1, 3))
    colour = colours[label] + rng.normal(0, 0.2, (len(points), 3))
    return {
        "x": np.concatenate([colour, points], axis=1),
        "edges": np.stack([source, nearest[:, 1:].ravel()], axis=1),
        "edge_attr": np.exp(-(distance[:, 1:].reshape(-1, 1) ** 2)),
        "graph_y": np.array([label]),
    }


Maker = Callable[[DatasetConfig, Mapping[str, int]], dict[str, PackedGraphs]]

MAKERS: Mapping[str, tuple[tuple[int, int, int], Maker]] = {
    "zinc": (SMALL, _one_by_one(_zinc)),
    "cifar10_sp": (MIDDLE, _one_by_one(_neighbours)),
    "pattern": (MIDDLE, _block_models),
    "cluster": (MIDDLE, _block_models),
    "pascalvoc_sp": (LARGE, _one_by_one(_superpixels)),
    "coco_sp": (LARGE, _one_by_one(_superpixels)),
    "pcqm_contact": (SMALL, _one_by_one(_contact_molecule)),
    "peptides_func": (MIDDLE, _one_by_one(_peptide)),
    "peptides_struct": (MIDDLE, _one_by_one(_peptide)),
}
"""By set, its sizes and how its splits are made."""
