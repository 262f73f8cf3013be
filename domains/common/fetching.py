"""Downloads: into `CACHE_DIR`, verified, whole or not at all."""

from __future__ import annotations

import shutil
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from domains.common.files import cache_dir, checksum
from domains.common.whole_folder import make_whole
from domains.contract import DataCorrupt, DataUnavailable

AGENT = "Mozilla/5.0 (compatible; attention-benchmarks)"
"""Some hosts answer Python's own name with 403."""


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

    # A thread, because the look-up of a name can hang and knows no time limit.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    return answered.is_set()


def fetch_folder(
    url: str, folder: Path, fetch: Callable[[Path], None], how_to_supply: Callable[[str], str]
) -> None:
    """Fetch a folder unless it is there; processes that ask at once fetch it once.

    Args:
        url: where from, for the message.
        folder: where to, in `CACHE_DIR`.
        fetch: fills an empty folder.
        how_to_supply: makes the message of a reason why it cannot be fetched.

    Raises:
        DataUnavailable: no network, no such file, or nowhere to write to.
    """

    def fill(work: Path) -> None:
        try:
            fetch(work)
        except (OSError, HTTPException) as error:
            raise DataUnavailable(how_to_supply(f"{url}: {error}")) from error

    try:
        make_whole(folder, fill, folder.exists)
    except OSError as error:
        reason = f"CACHE_DIR, now {cache_dir()}, cannot be written to: {error}"
        raise DataUnavailable(how_to_supply(reason)) from error


def download(url: str, path: Path, digest: str | None, algorithm: str = "sha256") -> None:
    """Fetch a file and verify it.

    Args:
        url: where from.
        path: where to; its folder is there.
        digest: checksum that the file must have; None where the caller checks what is in it.
        algorithm: of the checksum; another than SHA-256 only where that is not published.

    Raises:
        OSError: no network, no such file, or no space.
        DataCorrupt: the file is not the one that was published.
    """
    request = urllib.request.Request(url, headers={"User-Agent": AGENT})
    with urllib.request.urlopen(request, timeout=60) as answer, path.open("wb") as out:
        shutil.copyfileobj(answer, out)
    if digest is not None and (found := checksum(path, algorithm)) != digest:
        name = algorithm.upper().replace("SHA", "SHA-")
        raise DataCorrupt(
            f"{url} has {name} {found}, expected {digest}. Fetch it again; if the address serves "
            "another file now, put the files into DATA_DIR."
        )
