"""The Peptides sets in their published raw form, and splits that come as lists of row numbers."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from domains.common.plain_pickle import read_pickle, read_torch
from domains.contract import DataCorrupt
from domains.graph.molecules import molecular_graphs
from domains.graph.store import SPLITS, PackedGraphs

STRUCT_TARGETS = (
    "Inertia_mass_a", "Inertia_mass_b", "Inertia_mass_c",
    "Inertia_valence_a", "Inertia_valence_b", "Inertia_valence_c",
    "length_a", "length_b", "length_c", "Spherocity", "Plane_best_fit",
)  # fmt: skip
"""Columns of the file of Peptides-struct that are predicted, in the order of LRGB."""

STANDARDISED = 1e-6
"""How far mean and sd of a standardised target may be from 0 and 1."""


def read_functional(path: Path) -> PackedGraphs:
    """Peptides-func: SMILES and a list of ten labels a row.

    Raises:
        DataCorrupt: the file is damaged or holds something else.
        DataUnavailable: RDKit is not installed.
    """
    table = _table(path, ("smiles", "labels"))
    try:
        labels = torch.tensor([json.loads(text) for text in table["labels"]], dtype=torch.float32)
    except (ValueError, TypeError) as error:
        raise DataCorrupt(f"{path}: labels that are no lists of equal length: {error}") from error
    return _with_targets(table, labels, path)


def read_structural(path: Path) -> PackedGraphs:
    """Peptides-struct: SMILES and eleven standardised targets a row.

    The targets were standardised by their publishers, with mean and sd (ddof 1) of all molecules,
    those of the test split included.

    Raises:
        DataCorrupt: the file is damaged, holds something else, or targets as they were measured.
        DataUnavailable: RDKit is not installed.
    """
    table = _table(path, ("smiles", *STRUCT_TARGETS))
    targets = table[list(STRUCT_TARGETS)].to_numpy(np.float64)
    mean, sd = targets.mean(axis=0), targets.std(axis=0, ddof=1)
    if not (np.abs(mean).max() < STANDARDISED and np.abs(sd - 1.0).max() < STANDARDISED):
        raise DataCorrupt(
            f"{path}: the targets are not standardised; the published file is "
            "peptide_structure_normalized_dataset.csv.gz"
        )
    return _with_targets(table, torch.from_numpy(targets.astype(np.float32)), path)


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataCorrupt(f"{path}: no table, or truncated: {error}") from error
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise DataCorrupt(f"{path}: without the column {', '.join(missing)}")
    return table


def _with_targets(table: pd.DataFrame, targets: torch.Tensor, path: Path) -> PackedGraphs:
    graphs = molecular_graphs(table["smiles"].fillna(""), str(path))
    return PackedGraphs({**graphs.arrays, "graph_y": targets}, graphs.ptr)


def read_split(path: Path, total: int) -> dict[str, NDArray[np.int64]]:
    """Numbers of the graphs in each split, from a pickle or a file of `torch.save`.

    Raises:
        DataCorrupt: damaged, or the splits overlap or do not cover all graphs.
    """
    content: Any = read_torch(path) if path.suffix == ".pt" else read_pickle(path)
    try:
        splits = {name: np.asarray(content[name], dtype=np.int64) for name in SPLITS}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataCorrupt(f"{path}: without numbers for {', '.join(SPLITS)}: {error}") from error
    everything = np.sort(np.concatenate(list(splits.values())))
    if not np.array_equal(everything, np.arange(total)):
        raise DataCorrupt(f"{path}: the splits overlap or do not cover all {total} graphs")
    return splits
