"""Whether graphs are what their configuration says, looked at before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from domains.contract import DataCorrupt
from domains.graph.config import GENERATED, DatasetConfig
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES
from domains.graph.store import PackedGraphs

MEAN_TOLERANCE = 0.06
"""Published means are rounded to one decimal or two."""

MOST_NODES = 32_767
"""The largest number that prepared files have for a node; graphs here have up to some 500."""


def check_sizes(config: DatasetConfig, splits: Mapping[str, PackedGraphs], source: str) -> None:
    """Compare the numbers of graphs with the configured ones.

    Raises:
        DataCorrupt: they differ.
    """
    for split, graphs in splits.items():
        expected = getattr(config, split)
        if len(graphs) != expected:
            raise DataCorrupt(
                f"{source}: {len(graphs):,} graphs in the {split} split, but dataset.{split} is "
                f"{expected:,}. Splits of published files are taken as they are"
                + ("; dataset.origin=generated can be of any size" * (config.name in GENERATED))
            )


def check_means(config: DatasetConfig, splits: Mapping[str, PackedGraphs], source: str) -> None:
    """Compare the mean numbers of nodes and edges over all splits with the published ones.

    Superpixels of another compactness, for example, come in as many graphs.

    Raises:
        DataCorrupt: they differ by more than rounding.
    """
    total = sum(map(len, splits.values()))
    for axis, published in (("node", config.mean_nodes), ("edge", config.mean_edges)):
        found = sum(int(graphs.ptr[axis][-1]) for graphs in splits.values()) / total
        if published is not None and abs(found - published) > MEAN_TOLERANCE:
            raise DataCorrupt(
                f"{source}: {found:.2f} {axis}s a graph, published are {published}: these are not "
                f"the graphs of {config.name}"
            )


def check_graphs(config: DatasetConfig, graphs: PackedGraphs, where: str) -> None:
    """Look at every value of some graphs.

    Args:
        config: what they should be.
        graphs: some or all graphs of a split.
        where: source and split, for messages.

    Raises:
        DataCorrupt: a width, type, node number or label is not what it should be.
    """
    for problem in _problems(config, graphs):
        raise DataCorrupt(f"{where}: {problem}")


def _problems(config: DatasetConfig, graphs: PackedGraphs) -> Iterator[str]:
    """What is wrong, in words, most basic first. Later checks rely on earlier ones."""
    arrays = graphs.arrays
    nodes = graphs.counts("node")
    if len(nodes) and not 1 <= int(nodes.min()) <= int(nodes.max()) <= MOST_NODES:
        yield f"a graph without nodes, or with more than {MOST_NODES:,}"
    for name, axis in (("edges", "edge"), ("contacts", "contact")):
        if name in arrays:
            limit = torch.repeat_interleave(nodes, graphs.counts(axis))[:, None]
            if bool(((arrays[name] < 0) | (arrays[name] >= limit)).any()):
                yield f"{name} that name a node outside of their graph"
    node_kinds, edge_kinds = _kinds(config)
    yield from _feature_problems("node features", arrays["x"], node_kinds)
    edge_attr = arrays.get("edge_attr")
    if (edge_attr is None) != (edge_kinds is None):
        yield f"edge features that are {'missing' if edge_attr is None else 'not expected'}"
    if edge_attr is not None and edge_kinds is not None:
        yield from _feature_problems("edge features", edge_attr, edge_kinds)
    yield from _target_problems(config, arrays)


Kinds = int | tuple[int, ...]
"""Width of float features, or the number of values of each integer one."""


def _kinds(config: DatasetConfig) -> tuple[Kinds, Kinds | None]:
    """Of nodes and of edges."""
    if config.features == "atom":
        return ATOM_TYPES, BOND_TYPES
    if config.features == "categorical":
        return (config.node_types or 0,), (config.edge_types or 0,)
    return config.node_width or 0, config.edge_width


def _feature_problems(what: str, array: Tensor, kinds: Kinds) -> Iterator[str]:
    width = kinds if isinstance(kinds, int) else len(kinds)
    if array.shape[1] != width:
        yield f"{array.shape[1]} {what}, expected {width}"
    elif isinstance(kinds, int):
        if not bool(torch.isfinite(array).all()):
            yield f"{what} that are not finite"
    elif array.is_floating_point():
        yield f"{what} that are no integers"
    elif len(array):
        low, high = array.amin(0), array.amax(0)
        for column, values in enumerate(kinds):
            if not 0 <= int(low[column]) <= int(high[column]) < values:
                yield (
                    f"{what}: column {column} has values from {int(low[column])} to "
                    f"{int(high[column])}, expected are 0 to {values - 1}"
                )


def _target_problems(config: DatasetConfig, arrays: Mapping[str, Tensor]) -> Iterator[str]:
    needed = {
        "graph_regression": "graph_y",
        "graph_classification": "graph_y",
        "multilabel": "graph_y",
        "node_classification": "node_y",
        "contact": "contacts",
    }[config.task]
    if needed not in arrays:
        yield f"no targets for task {config.task}"
        return
    y = arrays[needed]
    if config.classes is not None:
        if y.dim() != 1 or y.is_floating_point():
            yield f"labels of shape {tuple(y.shape)} and type {y.dtype}, expected integers in a row"
        elif not 0 <= int(y.min()) <= int(y.max()) < config.classes:
            yield (
                f"labels from {int(y.min())} to {int(y.max())}, expected are 0 to "
                f"{config.classes - 1}"
            )
    elif config.targets is not None:
        if y.reshape(len(y), -1).shape[1] != config.targets:
            yield f"{y.reshape(len(y), -1).shape[1]} targets a graph, expected {config.targets}"
        elif config.task == "graph_regression" and not bool(torch.isfinite(y).all()):
            yield "targets that are not finite"
        elif config.task == "multilabel" and bool(((y != 0) & (y != 1) & ~torch.isnan(y)).any()):
            yield "labels other than 0, 1 and NaN"


def check_classes(config: DatasetConfig, train: PackedGraphs, source: str) -> None:
    """See that every class occurs in training; one is missing after a wrong mapping of labels.

    Raises:
        DataCorrupt: a class without a label.
    """
    if config.classes is None:
        return
    labels = train.arrays["node_y" if config.task == "node_classification" else "graph_y"]
    seen = torch.bincount(labels, minlength=config.classes)
    if missing := (seen == 0).nonzero().flatten().tolist():
        raise DataCorrupt(f"{source}: no training label of class {', '.join(map(str, missing))}")
