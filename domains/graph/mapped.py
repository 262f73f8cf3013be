"""Graphs on disk: plain arrays that are mapped.

Mapped rather than read, so that all processes of a machine share one copy in memory and a process
needs no more than the graphs it looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from domains.graph.store import PackedGraphs


def new_array(folder: Path, name: str, shape: tuple[int, ...], dtype: Any) -> BinaryIO:
    """An `.npy` file, open behind its header: rows are appended as bytes.

    Written rather than mapped: on a full disk a write raises, a map kills the process.
    """
    file = open(folder / f"{name}.npy", "wb")  # noqa: SIM115  # the caller closes it
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file


def map_graphs(folder: Path, split: str, names: Mapping[str, Any]) -> PackedGraphs:
    """Graphs of a split: arrays mapped, pointers read.

    Args:
        folder: where they are.
        split: name of the split.
        names: `arrays` and `axes` that the split has.
    """
    arrays = {name: _map(folder / f"{split}.{name}.npy") for name in names["arrays"]}
    ptr = {
        axis: torch.from_numpy(np.load(folder / f"{split}.ptr_{axis}.npy", allow_pickle=False))
        for axis in names["axes"]
    }
    return PackedGraphs(arrays, ptr)


def _map(path: Path) -> torch.Tensor:
    # Mode "c": torch wants arrays that may be written to. Nobody does, and it would stay private.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(np.asarray(array))
