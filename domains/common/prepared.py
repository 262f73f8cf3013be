"""Prepared data on disk: built once, whole or not at all, verified whenever it is read."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.common.files import cache_dir, sha256
from domains.common.whole_folder import make_whole
from domains.contract import DataUnavailable

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

    Raises:
        DataUnavailable: the temporary folder cannot be written to either.
    """
    folder = cache_dir() / name
    found, damage = _look(folder)
    if found is not None:
        return found
    if damage:
        log.warning("cache %s is damaged (%s) and is built again", folder, damage)
    try:
        make_whole(folder, lambda work: _fill(work, build), lambda: _look(folder)[0] is not None)
        return _read(folder)
    except OSError as error:
        log.warning("CACHE_DIR cannot be used; %s is prepared every time (%s)", name, error)
        reason = error
    try:
        return _temporary(build)
    except OSError as error:
        raise DataUnavailable(
            f"{name} can be prepared neither in CACHE_DIR, now {cache_dir()} ({reason}), nor in a "
            f"temporary folder ({error}). Set CACHE_DIR to a folder that has room"
        ) from error


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


def _look(folder: Path) -> tuple[Prepared | None, str]:
    """What is in a folder, or else what is wrong with it; nothing is if it is not there."""
    if not os.path.isdir(folder):
        return None, ""
    try:
        found = _read(folder)
        damaged = [
            name for name, digest in found.digests.items() if sha256(folder / name) != digest
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, str(error)
    return (None, ", ".join(damaged)) if damaged else (found, "")
