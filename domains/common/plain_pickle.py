"""Pickle files of arrays, read without running what they say.

Published splits, lists of frames and processed files of PyTorch Geometric are pickles. They need a
handful of classes; every other name in a file is refused. Objects of PyTorch Geometric become plain
:class:`Record`s, so that files of all its versions can be read and none of its code runs.

The module itself is what `torch.load` takes as `pickle_module`; `weights_only=True` would do for
files of newer versions alone.
"""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from domains.contract import DataCorrupt


class Record:
    """Stands for an object of a class that is not needed: its attributes and nothing else."""


def _latin1(text: str, encoding: str) -> bytes:
    """How pickle protocol 2 writes bytes; no other encoding is looked up."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}, which is not allowed")
    return text.encode("latin1")


_PYG = "torch_geometric.data."
_RECONSTRUCT = np.zeros(1).__reduce__()[0]

ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("builtins", "dict"): dict,
    ("__builtin__", "dict"): dict,  # as Python 2 and pickle protocol 2 name it
    ("_codecs", "encode"): _latin1,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    (f"{_PYG}data", "Data"): Record,
    (f"{_PYG}data", "DataEdgeAttr"): Record,
    (f"{_PYG}data", "DataTensorAttr"): Record,
    (f"{_PYG}storage", "GlobalStorage"): Record,
}
"""Module and name of everything that a file may ask for."""


class Unpickler(pickle.Unpickler):
    """Refuses every name that is not in `ALLOWED`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return ALLOWED[module, name]


def read_pickle(path: Path) -> Any:
    """Content of a pickle file of arrays and containers.

    Raises:
        DataCorrupt: damaged, or it asks for something that is not allowed.
    """
    try:
        with path.open("rb") as file:
            return Unpickler(file).load()
    except _DAMAGE as error:
        raise DataCorrupt(f"{path}: no pickle file of arrays: {error}") from error


def read_torch(path: Path) -> Any:
    """Content of a file of `torch.save`; its tensors are mapped from the file, not read.

    Raises:
        DataCorrupt: damaged, or it asks for something that is not allowed.
    """
    try:
        this_module = sys.modules[__name__]
        return torch.load(path, map_location="cpu", mmap=True, pickle_module=this_module)
    except _DAMAGE as error:
        raise DataCorrupt(f"{path}: no file of torch.save with arrays: {error}") from error


_DAMAGE = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError,
    RuntimeError, OSError,
)  # fmt: skip
"""What reading a damaged file raises."""
