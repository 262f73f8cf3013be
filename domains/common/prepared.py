"""Prepared data on disk: built once, whole or not at all, verified whenever it is read."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.common.files import cache_dir, sha256

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"

Build = Callable[[Path], Mapping[str, Any]]
"""Fills an empty folder with files and returns facts about them, as JSON can hold them."""


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data.

    Attributes:
        folder: holds the files; not to be written to.
        facts: what the builder said.
        digests: SHA-256 of the files, by name.
    """

    folder: Path
    facts: Mapping[str, Any]
    digests: Mapping[str, str]


def prepared(name: str, build: Build) -> Prepared:
    """A folder of `CACHE_DIR`, built now unless it is there and undamaged.

    Processes that ask for the same folder at once build it once: the others wait. Where
    `CACHE_DIR` cannot be written to, the data goes to a temporary folder of this process.

    Args:
        name: of the folder, relative to `CACHE_DIR`; names everything that the content depends on.
        build: see :data:`Build`. Whatever it raises leaves nothing behind.
    """
    folder = cache_dir() / name
    found = _verified(folder)
    if found is not None:
        return found
    try:
        with _alone(folder):
            # Whoever held the lock before may have built it.
            return _verified(folder) or _built(folder, build)
    except OSError as error:
        log.warning("CACHE_DIR cannot be used; %s is prepared every time (%s)", name, error)
    return _temporary(build)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building the same folder; a process that dies lets go."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _built(folder: Path, build: Build) -> Prepared:
    """Build beside the place and rename; what is in the place is damaged and goes."""
    prefix = f".{folder.name}.work-"
    for left in folder.parent.glob(f"{prefix}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    try:
        _fill(work, build)
        if folder.exists():
            os.rename(folder, work / "damaged")
            shutil.rmtree(work / "damaged")
        os.rename(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return _read(folder)


def _temporary(build: Build) -> Prepared:
    work = Path(tempfile.mkdtemp(prefix="attention-benchmarks-"))
    try:
        _fill(work, build)
        found = _read(work)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    weakref.finalize(found, shutil.rmtree, work, ignore_errors=True)
    return found


def _fill(folder: Path, build: Build) -> None:
    facts = dict(build(folder))
    digests = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"facts": facts, "sha256": digests}, indent=1))


def _read(folder: Path) -> Prepared:
    manifest = json.loads((folder / MANIFEST).read_text())
    return Prepared(folder, manifest["facts"], manifest["sha256"])


def _verified(folder: Path) -> Prepared | None:
    """What is in a folder, None if it is not there or damaged."""
    if not os.path.isdir(folder):
        return None
    try:
        found = _read(folder)
        damaged = [
            name for name, digest in found.digests.items() if sha256(folder / name) != digest
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damaged = [str(error)]
    if not damaged:
        return found
    log.warning("cache %s is damaged (%s) and is built again", folder, ", ".join(damaged))
    return None
