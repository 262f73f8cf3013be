"""From the graphs of a source to prepared splits in the cache: check, encode, compact.

Work goes in chunks of graphs, so that memory is bounded whatever the size of the set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domains.common.files import checksum
from domains.common.prepared import prepared
from domains.contract import DataKind
from domains.graph.checks import check_classes, check_graphs, check_means, check_sizes
from domains.graph.config import DatasetConfig
from domains.graph.encodings import is_undirected, random_walk_returns, smallest_eigenpairs
from domains.graph.mapped import map_graphs, new_array
from domains.graph.sources import Source, find
from domains.graph.store import AXES, SPLITS, PackedGraphs

log = logging.getLogger(__name__)

VERSION = 1
"""Raised when prepared files change in form or content; older ones are then left alone."""

ENCODINGS = ("rwse", "lap_vectors", "lap_values")
CHUNK = 1024
"""Graphs that are looked at together."""

SAID_AFTER_S = 10.0
"""Preparation that takes longer says how far it is, this often."""


@dataclasses.dataclass(frozen=True)
class PreparedSet:
    """Splits ready for batches, with what is known of their origin.

    Attributes:
        splits: by name, checked and with encodings.
        kind: see `DataKind`.
        source: for people.
        fingerprint: `sha256:...` of graphs and targets. Encodings follow from them, but not to the
            last bit on every machine, and do not enter.
        notes: what a reader must know.
    """

    splits: Mapping[str, PackedGraphs]
    kind: DataKind
    source: str
    fingerprint: str
    notes: tuple[str, ...]


def prepared_set(config: DatasetConfig) -> PreparedSet:
    """A set from the cache, or prepared now and put there.

    Raises:
        DataUnavailable: no source, or nowhere to write to.
        DataCorrupt: the source is damaged or is not what the configuration says.
    """
    source = find(config)
    name = f"graph/{config.name}-{_key(config, source)}"
    made = prepared(name, lambda folder: _prepare(config, source, folder))
    splits = made.facts["splits"]
    return PreparedSet(
        splits={split: map_graphs(made.folder, split, splits[split]) for split in SPLITS},
        kind=made.facts["kind"],
        source=source.description,
        fingerprint=made.facts["fingerprint"],
        notes=tuple(made.facts["notes"]),
    )


def _key(config: DatasetConfig, source: Source) -> str:
    """Digest of everything that decides what is prepared and what it is checked against."""
    asked = dataclasses.asdict(config)
    for irrelevant in ("metric", "origin", "source", "licence"):
        del asked[irrelevant]
    stats = [(path.name, path.stat()) for path in source.files]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    text = json.dumps([VERSION, asked, source.kind, source.made_with, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prepare(config: DatasetConfig, source: Source, folder: Path) -> dict[str, Any]:
    splits = source.read()
    check_sizes(config, splits, source.description)
    if source.kind == "real":
        check_means(config, splits, source.description)
    undirected = is_undirected(splits["train"])
    names, digests = {}, {}
    for split in SPLITS:
        where = f"{source.description}, {split}"
        names[split] = write_split(config, splits[split], folder, split, undirected, where)
        written = map_graphs(folder, split, names[split])
        if split == "train":
            check_classes(config, written, source.description)
        digests[split] = content_digest(written)
    kind, notes = _judge(config, source, digests)
    return {
        "kind": kind,
        "notes": notes,
        "fingerprint": fingerprint(digests),
        "digests": digests,
        "undirected": undirected,
        "splits": names,
    }


def _judge(
    config: DatasetConfig, source: Source, digests: Mapping[str, str]
) -> tuple[DataKind, list[str]]:
    """Kind of the data, and what to say about it. Files that differ from known ones: `sample`."""
    notes = list(source.notes)
    if source.kind == "regenerated":
        return source.kind, notes
    named = [path for path in source.files if path.name in config.md5]
    differing = [path.name for path in named if checksum(path, "md5") != config.md5[path.name]]
    differing += [f"{split} split" for split, d in config.content.items() if digests[split] != d]
    if differing:
        return "sample", [*notes, f"not the published content: {', '.join(differing)}"]
    if source.kind == "real" and not named and not config.content:
        notes.append("no checksum is known; numbers of graphs, nodes and edges are the published")
    return source.kind, notes


def write_split(
    config: DatasetConfig,
    graphs: PackedGraphs,
    folder: Path,
    split: str,
    undirected: bool,
    where: str,
) -> dict[str, list[str]]:
    """Check, encode and write a split.

    Returns:
        Names of its `arrays` and `axes`.
    """
    begun = time.monotonic()
    with contextlib.ExitStack() as open_files:
        files: dict[str, BinaryIO] = {}
        for first in range(0, len(graphs), CHUNK):
            part = graphs.part(first, min(first + CHUNK, len(graphs)))
            check_graphs(config, part, where)
            for name, array in encoded(config, part, undirected).items():
                if name not in files:
                    axis = AXES[name]
                    rows = len(graphs) if axis == "graph" else int(graphs.ptr[axis][-1])
                    shape = (rows, *array.shape[1:])
                    new = new_array(folder, f"{split}.{name}", shape, array.dtype)
                    files[name] = open_files.enter_context(new)
                files[name].write(np.ascontiguousarray(array).data)
            if time.monotonic() - begun > SAID_AFTER_S:
                begun = time.monotonic()
                log.info("%s: %d of %d graphs prepared", where, first + len(part), len(graphs))
    for axis, ptr in graphs.ptr.items():
        np.save(folder / f"{split}.ptr_{axis}.npy", ptr.numpy(), allow_pickle=False)
    return {"arrays": sorted(files), "axes": sorted(graphs.ptr)}


def encoded(
    config: DatasetConfig, graphs: PackedGraphs, undirected: bool
) -> dict[str, NDArray[Any]]:
    """Arrays of some graphs in compact types, with the encodings that are asked for."""
    arrays = {name: compact(config, name, array) for name, array in graphs.arrays.items()}
    if config.rwse_steps:
        arrays["rwse"] = random_walk_returns(graphs, config.rwse_steps)
    if config.lap_pairs:
        vectors, values = smallest_eigenpairs(graphs, config.lap_pairs, undirected)
        arrays["lap_vectors"], arrays["lap_values"] = vectors, values
    return {name: array.numpy() for name, array in arrays.items()}


def compact(config: DatasetConfig, name: str, array: Tensor) -> Tensor:
    """An array in the type it is kept in, which depends on the configuration alone.

    Integers of features and labels are below 256 in all sets (checked before), node numbers below
    32,768.
    """
    if name in ("edges", "contacts"):
        return array.to(torch.int16)
    if name in ("x", "edge_attr"):
        return array.to(torch.float32 if config.features == "float" else torch.uint8)
    if config.classes is not None:
        return array.to(torch.uint8)
    return array.reshape(len(array), -1).to(torch.float32)


def content_digest(graphs: PackedGraphs) -> str:
    """SHA-256 of graphs and targets, without encodings."""
    digest = hashlib.sha256()
    for name in sorted(set(graphs.arrays) - set(ENCODINGS)):
        array = graphs.arrays[name].numpy()
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(array.reshape(-1).data)
    for axis in sorted(graphs.ptr):
        digest.update(axis.encode())
        digest.update(graphs.ptr[axis].numpy().data)
    return digest.hexdigest()


def fingerprint(digests: Mapping[str, str]) -> str:
    """`sha256:...` of all splits."""
    text = "\n".join(f"{split} {digests[split]}" for split in SPLITS)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
