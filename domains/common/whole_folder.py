"""Folders that are there whole or not at all, made by one process while the others wait."""

from __future__ import annotations

import fcntl
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)


def make_whole(folder: Path, fill: Callable[[Path], None], there: Callable[[], bool]) -> None:
    """Have a folder made unless it is there.

    Where the file system knows no locks, processes work side by side, and whoever is first wins.

    Args:
        folder: where to. What is in the place but not `there` is replaced.
        fill: puts files into an empty folder. Whatever it raises leaves nothing behind.
        there: whether the folder is in its place and as it should be.

    Raises:
        OSError: the place cannot be written to, or is full.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.work-"
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        alone = _locked(lock)
        if there():  # made by whoever held the lock before
            return
        if alone:
            for left in folder.parent.glob(f"{prefix}*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
        work = folder.with_name(f"{prefix}{secrets.token_hex(8)}")
        work.mkdir()  # readable by whoever shares the cache, unlike that of `tempfile.mkdtemp`
        try:
            fill(work)
            if alone or not there():
                _put(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _locked(lock: IO[str]) -> bool:
    """Wait for the lock; False where there are none. A process that dies lets go."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        log.warning("no lock on %s (%s)", lock.name, error)
        return False
    return True


def _put(work: Path, folder: Path) -> None:
    if folder.exists():
        aside = folder.rename(f"{work}-replaced")
        shutil.rmtree(aside, ignore_errors=True)
    work.rename(folder)
