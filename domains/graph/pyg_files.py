"""Processed files of PyTorch Geometric and of GraphGPS, and the `.npz` form of ZINC."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from domains.common.plain_pickle import Record, read_torch
from domains.contract import DataCorrupt
from domains.graph.store import PackedGraphs, pointer

LABELLED = ("edge_label_index", "edge_index_labeled")
"""Pairs with a label in PyTorch Geometric's and in GraphGPS's file of PCQM-Contact."""


def read_processed(path: Path) -> PackedGraphs:
    """Graphs of a file that `InMemoryDataset` wrote, of any version.

    Positions, where there are some, are put behind the node features, and stored negative pairs
    are left out, both as GraphGPS does it.

    Raises:
        DataCorrupt: the file is damaged or holds something else.
    """
    content = read_torch(path)
    if not isinstance(content, tuple) or len(content) < 2:
        raise DataCorrupt(f"{path}: not a processed file of PyTorch Geometric")
    fields, slices = _fields(content[0]), content[1]
    missing = {"x", "edge_index"} - {n for n in fields if isinstance(slices, dict) and n in slices}
    if missing:
        raise DataCorrupt(f"{path}: without {' and '.join(sorted(missing))}")
    x = fields["x"]
    if isinstance(fields.get("pos"), Tensor):
        x = torch.cat([x, fields["pos"]], dim=1)
    arrays = {"x": x, "edges": fields["edge_index"].t()}
    ptr = {"node": slices["x"], "edge": slices["edge_index"]}
    if isinstance(fields.get("edge_attr"), Tensor):
        arrays["edge_attr"] = _as_columns(fields["edge_attr"])
    y = fields.get("y")
    if isinstance(y, Tensor):
        arrays["node_y" if len(y) == len(x) else "graph_y"] = y
    labelled = next((name for name in LABELLED if name in fields), None)
    if labelled is not None:
        positive = fields["edge_label"] == 1
        before = pointer(positive.to(torch.int64))
        arrays["contacts"] = fields[labelled].t()[positive]
        ptr["contact"] = before[slices[labelled].to(torch.int64)]
    return packed(path, arrays, ptr)


def _fields(data: Any) -> Mapping[str, Any]:
    """Named tensors of a data object: a dictionary (PyG 2.3 on), a store (2.0), attributes (1)."""
    if isinstance(data, dict):
        return data
    if isinstance(data, Record):
        store = vars(data).get("_store")
        return vars(store)["_mapping"] if isinstance(store, Record) else vars(data)
    return {}


def read_npz(path: Path) -> PackedGraphs:
    """ZINC as arrays: `x`, `edge_index`, `edge_attr`, `y`, `node_ptr`, `edge_ptr`.

    Raises:
        DataCorrupt: the file is damaged or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in file.files}
        arrays = {
            "x": _as_columns(found["x"]),
            "edges": found["edge_index"].t(),
            "edge_attr": _as_columns(found["edge_attr"]),
            "graph_y": _as_columns(found["y"]),
        }
        ptr = {"node": found["node_ptr"], "edge": found["edge_ptr"]}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataCorrupt(f"{path}: damaged, or not graphs as arrays: {error}") from error
    return packed(path, arrays, ptr)


def packed(path: Path, arrays: Mapping[str, Tensor], ptr: Mapping[str, Tensor]) -> PackedGraphs:
    """Arrays of a file put together, after a look at whether they fit to one another.

    Raises:
        DataCorrupt: an array is shorter or longer than the others say.
    """
    graphs = len(ptr["node"]) - 1
    rows = {"x": "node", "edges": "edge", "edge_attr": "edge", "contacts": "contact"}
    for name, axis in rows.items():
        if name not in arrays:
            continue
        starts = ptr[axis].to(torch.int64)
        fits = len(starts) == graphs + 1 and starts[0] == 0 and bool((starts.diff() >= 0).all())
        if not fits or starts[-1] != len(arrays[name]):
            raise DataCorrupt(
                f"{path}: {len(arrays[name])} rows of {name} do not fit to {graphs} graphs"
            )
    if "node_y" in arrays and len(arrays["node_y"]) != len(arrays["x"]):
        raise DataCorrupt(f"{path}: {len(arrays['node_y'])} labels, {len(arrays['x'])} nodes")
    if "graph_y" in arrays and len(arrays["graph_y"]) != graphs:
        raise DataCorrupt(f"{path}: {len(arrays['graph_y'])} targets for {graphs} graphs")
    return PackedGraphs(arrays, {axis: p.to(torch.int64) for axis, p in ptr.items()})


def _as_columns(array: Tensor) -> Tensor:
    """(R, K), where (R,) stands for a single column."""
    return array if array.dim() == 2 else array[:, None]
