"""Finding, fetching and checking the files of a data set."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from domains.contract import DataCorrupt

SEARCH_DEPTH = 5
"""Folders between `DATA_DIR` and a set's own; deeper trees are not walked."""

AGENT = "Mozilla/5.0 (compatible; attention-benchmarks)"
"""Some hosts answer Python's own name with 403."""


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


def reachable(url: str, timeout: float = 0.7) -> bool:
    """Whether the server of an address accepts a connection within `timeout` seconds.

    Bounded even where the look-up of the name hangs.
    """
    answered = threading.Event()

    def connect() -> None:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (80 if parts.scheme == "http" else 443)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=timeout).close()
        except OSError:
            return
        answered.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    return answered.is_set()


def download(url: str, path: Path, digest: str, algorithm: str = "sha256") -> None:
    """Fetch a file and verify it.

    Args:
        url: where from.
        path: where to; its folder is there.
        digest: checksum that the file must have.
        algorithm: of the checksum; another than SHA-256 only where that is not published.

    Raises:
        OSError: no network, no such file, or no space.
        DataCorrupt: the file is not the one that was published.
    """
    request = urllib.request.Request(url, headers={"User-Agent": AGENT})
    with urllib.request.urlopen(request, timeout=60) as answer, path.open("wb") as out:
        shutil.copyfileobj(answer, out)
    if (found := checksum(path, algorithm)) != digest:
        name = algorithm.upper().replace("SHA", "SHA-")
        raise DataCorrupt(
            f"{url} has {name} {found}, expected {digest}. Fetch it again; if the address serves "
            "another file now, put the files into DATA_DIR."
        )
