"""Finds, fetches and verifies the files of a text."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from domains.common.fetching import download, fetch_folder, reachable
from domains.common.files import cache_dir, folders_named, sha256
from domains.contract import DataCorrupt, DataSource, DataUnavailable
from domains.language.config import DatasetConfig

FILES = {"train": "wiki.train.tokens", "valid": "wiki.valid.tokens", "test": "wiki.test.tokens"}
"""Files of a text. In the `.raw` files of the raw version no word is replaced by `<unk>`."""

ARCHIVE = "archive"
"""Key of the zip's checksum in `DatasetConfig.sha256`, beside those of the files."""


@dataclass(frozen=True)
class TextFiles:
    """The files that a data set reads, by key of :data:`FILES`, and where they are, in words."""

    paths: Mapping[str, Path]
    source: str


def needed(config: DatasetConfig) -> tuple[str, ...]:
    """Keys of the files that a data set reads."""
    return ("valid", "test") if config.split == "valid_as_train" else ("train", "valid", "test")


def locate(config: DatasetConfig) -> TextFiles | None:
    """A folder with all files of a data set, below `DATA_DIR` or else `CACHE_DIR`.

    Raises:
        ValueError: not the name of a folder.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.folder):
        raise ValueError(
            f"dataset.folder={config.folder!r} is no name of a folder; allowed: letters, digits, "
            "'.', '_' and '-', for example wikitext-103"
        )
    for where, folder in folders_named(config.folder):
        paths = {key: folder / FILES[key] for key in needed(config)}
        if all(os.path.isfile(path) for path in paths.values()):
            return TextFiles(paths, f"{where}/wiki.{{{','.join(paths)}}}.tokens")
    return None


def require(config: DatasetConfig) -> DataSource:
    """Say where a text will be read from: files that are here, or an archive that answers.

    Raises:
        DataUnavailable: neither; the message says which files to put where.
    """
    files = locate(config)
    if files is not None:
        # Whether it is the published text is known when all of it was read.
        return DataSource("sample" if config.split == "valid_as_train" else None, files.source)
    if not config.url:
        raise DataUnavailable(_how_to_supply(config, "no address is known"))
    if not reachable(config.url):
        raise DataUnavailable(_how_to_supply(config, f"{config.url} does not answer"))
    return DataSource(None, f"to be fetched from {config.url}")


def fetch(config: DatasetConfig) -> TextFiles:
    """Download a text into `CACHE_DIR` and verify it.

    Raises:
        DataUnavailable: no network, no address, or nowhere to write it to.
        DataCorrupt: the archive or a file in it is not the published one.
    """
    if not config.url:
        raise DataUnavailable(_how_to_supply(config, "no address is known"))
    if ARCHIVE not in config.sha256:
        raise ValueError(
            f"dataset.url={config.url} needs dataset.sha256.{ARCHIVE}, the SHA-256 of the zip: "
            "nothing is fetched unverified"
        )
    target = cache_dir() / "language" / config.folder

    def fill(folder: Path) -> None:
        archive = folder / "archive.zip"
        download(config.url, archive, config.sha256[ARCHIVE])
        _unpack(config, archive, folder)
        archive.unlink()

    fetch_folder(config.url, target, fill, partial(_how_to_supply, config))
    files = locate(config)
    if files is None:
        raise DataCorrupt(f"{target} exists but does not hold the files of the text; remove it")
    return files


def _unpack(config: DatasetConfig, archive: Path, folder: Path) -> None:
    """Take the text's files out of the zip, whatever folders they are in."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = {Path(name).name: name for name in content.namelist()}
            for name in FILES.values():
                with content.open(members[name]) as source, (folder / name).open("wb") as out:
                    shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DataCorrupt(
            f"{config.url} is no zip file with {', '.join(FILES.values())}"
        ) from error


def _how_to_supply(config: DatasetConfig, reason: str) -> str:
    names = [FILES[key] for key in needed(config)]
    advice = (
        f"The files of {config.name} are not here and cannot be fetched ({reason}). Put "
        f"{', '.join(names[:-1])} and {names[-1]} into a folder {config.folder}/ anywhere under "
        f"DATA_DIR (now {os.environ.get('DATA_DIR') or 'not set'})"
    )
    advice += f"; {config.url} holds them." if config.url else "."
    for where, folder in folders_named(config.folder):
        if any(folder.glob("wiki.*.raw")):
            return f"{advice} The files in {where} are those of the raw version, not word-level."
        lacking = [name for name in names if not os.path.isfile(folder / name)]
        return f"{advice} The folder in {where} lacks {', '.join(lacking)}."
    return advice


def changed(config: DatasetConfig, files: TextFiles) -> list[str]:
    """Names of files that have a published checksum and differ from it."""
    pinned = {key: config.sha256[key] for key in files.paths if key in config.sha256}
    return [FILES[key] for key, digest in pinned.items() if sha256(files.paths[key]) != digest]
