"""Finding and checking the files of a data set."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

SEARCH_DEPTH = 5
"""Folders between `DATA_DIR` and a set's own; deeper trees are not walked."""


def cache_dir() -> Path:
    """`CACHE_DIR`, where downloads and prepared data go."""
    return Path(os.environ.get("CACHE_DIR") or "data")


def data_dir() -> Path | None:
    """`DATA_DIR`, the user's own files, only ever read; None if it is not set."""
    folder = os.environ.get("DATA_DIR")
    return Path(folder) if folder else None


def folders_named(name: str) -> Iterator[tuple[str, Path]]:
    """Every folder of that name in `DATA_DIR`, then in `CACHE_DIR`, the least deep first.

    Hidden folders are not looked into: what is in them may be half fetched.

    Yields:
        Where it was found, in words, and the folder.
    """
    for variable, root in (("DATA_DIR", data_dir()), ("CACHE_DIR", cache_dir())):
        # Unlike Path.is_dir, this is False for a folder that may not be looked at.
        if root is None or not os.path.isdir(root):
            continue
        for depth in range(SEARCH_DEPTH + 1):
            for folder in sorted(root.glob("[!.]*/" * depth + name)):
                if os.path.isdir(folder):
                    yield f"{variable}: {folder.relative_to(root).as_posix()}", folder


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return checksum(path, "sha256")


def checksum(path: Path, algorithm: str) -> str:
    """Hex digest of a file by one of hashlib's algorithms."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
