"""Prepared sets on disk: folders of plain arrays that are mapped, checked, and written whole.

Arrays are mapped rather than read, so that all processes of a machine share one copy in memory and
a process needs no more than the graphs it looks at.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from domains.common import files
from domains.common.files import sha256
from domains.contract import DataUnavailable
from domains.graph.store import PackedGraphs

log = logging.getLogger(__name__)

CONTENTS = "contents.json"

LEFTOVER_AFTER_S = 24 * 3600
"""Age from which on a temporary folder is nobody's."""


def cache_dir() -> Path:
    """Folder of the graph domain in `CACHE_DIR`, where downloads and prepared sets go."""
    return files.cache_dir() / "graph"


class DamagedError(Exception):
    """A prepared set that is not what it was when it was written."""


@contextlib.contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Let others that want to make the same folder wait until this one has made it.

    Where the file system knows no locks they work side by side; whoever is first wins.

    Raises:
        DataUnavailable: `CACHE_DIR` cannot be written to.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(f"{folder}.lock", "w")  # noqa: SIM115  # closed below, which releases it
    except OSError as error:
        raise _unwritable(error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("no lock on %s (%s)", lock.name, error)
        yield


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end, or vanishes if anything fails.

    If `folder` was made by somebody else in the meantime, that one stays.

    Raises:
        DataUnavailable: `CACHE_DIR` cannot be written to, or is full.
    """
    _remove_leftovers(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise _unwritable(error) from error
    try:
        yield scratch
        try:
            scratch.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # otherwise somebody else was first
                raise _unwritable(error) from error
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of processes that were killed; young ones may be in use."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFTOVER_AFTER_S:
                shutil.rmtree(left)


def _unwritable(error: OSError) -> DataUnavailable:
    return DataUnavailable(
        f"prepared graphs are kept in CACHE_DIR, now {cache_dir().parent}, which cannot be "
        f"written to ({error}). Set it to a folder with room"
    )


def write_contents(folder: Path, **meta: Any) -> None:
    """Close a prepared folder: note what it holds, with the checksum of every file."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.glob("*.npy"))
    }
    text = json.dumps({**meta, "files": files}, indent=1)
    (folder / CONTENTS).write_text(text, encoding="utf-8")


def read_contents(folder: Path) -> dict[str, Any] | None:
    """What a prepared folder says of itself, after a look at every byte; None if there is none.

    Raises:
        DamagedError: a file is missing, shorter or other than it was.
    """
    if not folder.is_dir():
        return None
    try:
        contents: dict[str, Any] = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        for name, expected in contents["files"].items():
            path = folder / name
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                raise DamagedError(f"{path} is not what was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder}: {error}") from error
    return contents


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
    """A split of a prepared folder: arrays mapped, pointers read.

    Args:
        folder: prepared and checked.
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
