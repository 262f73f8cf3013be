"""Finds, fetches and verifies the files of a UEA set, and says how far they can be trusted."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from domains.common.files import cache_dir, folders_named, reachable, sha256
from domains.contract import DataCorrupt, DataKind, DataSource, DataUnavailable
from domains.timeseries.config import DatasetConfig
from domains.timeseries.ts_format import TsFile, read_ts

log = logging.getLogger(__name__)

ARCHIVE_URL = "https://www.timeseriesclassification.com/aeon-toolkit/{name}.zip"
"""Where the archive offers a set: a zip with its `.ts` files."""

SPLITS = ("TRAIN", "TEST")
CACHE_FROM_BYTES = 32 * 2**20
"""Parsing takes about 1 s for 40 MB of text; smaller files are parsed anew every time."""

CACHE_VERSION = 1


@dataclass(frozen=True)
class SetFiles:
    """The two files of a set and where they were found, in words."""

    train: Path
    test: Path
    source: str


@dataclass(frozen=True)
class LoadedSet:
    """Parsed files with what is known of their origin."""

    train: TsFile
    test: TsFile
    kind: DataKind
    source: str
    notes: tuple[str, ...]


def locate(name: str) -> SetFiles | None:
    """Files of a set in `DATA_DIR`, `CACHE_DIR` or the installed sktime package, in this order.

    Raises:
        ValueError: not the name of a set.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            f"dataset.name={name!r} is no name of a UEA set; take it as the archive spells it, "
            "for example JapaneseVowels"
        )
    for where, folder in (*folders_named(name), *_sktime_folder(name)):
        train, test = (folder / f"{name}_{split}.ts" for split in SPLITS)
        if train.is_file() and test.is_file():
            return SetFiles(train, test, f"{where}/{name}_{{TRAIN,TEST}}.ts")
    return None


def _sktime_folder(name: str) -> Iterator[tuple[str, Path]]:
    """A set's folder in sktime, found without the seconds that importing it takes."""
    spec = importlib.util.find_spec("sktime")
    if spec is not None and spec.submodule_search_locations:
        data = Path(spec.submodule_search_locations[0], "datasets", "data")
        yield f"sktime package: {name}", data / name


def require(config: DatasetConfig) -> DataSource:
    """Say where a set will be read from: files that are here, or the archive if it answers.

    Raises:
        DataUnavailable: neither; the message says which files to put where.
    """
    files = locate(config.name)
    if files is None:
        if not reachable(ARCHIVE_URL):
            raise DataUnavailable(_how_to_supply(config.name, "the archive does not answer"))
        return DataSource(None, f"to be fetched from {ARCHIVE_URL.format(name=config.name)}")
    if not config.sha256:
        return DataSource(None, files.source)
    same = all(
        sha256(path) == config.sha256[split]
        for split, path in zip(SPLITS, (files.train, files.test), strict=True)
    )
    return DataSource("real" if same else "sample", files.source)


def _how_to_supply(name: str, reason: str) -> str:
    return (
        f"The files of {name} are not here and cannot be fetched ({reason}). Put "
        f"{name}_TRAIN.ts and {name}_TEST.ts into a folder {name}/ anywhere under DATA_DIR "
        f"(now {os.environ.get('DATA_DIR') or 'not set'}); {ARCHIVE_URL.format(name=name)} "
        "holds them."
    )


def fetch(config: DatasetConfig) -> SetFiles:
    """Download a set from the archive into `CACHE_DIR` and verify it.

    Raises:
        DataUnavailable: no network, no such set in the archive, or nowhere to write it to.
        DataCorrupt: the download is damaged or differs from a pinned checksum.
    """
    name = config.name
    target = cache_dir() / "timeseries" / name
    url = ARCHIVE_URL.format(name=name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-")
    except OSError as error:
        reason = f"CACHE_DIR, now {cache_dir()}, cannot be written to: {error}"
        raise DataUnavailable(_how_to_supply(name, reason)) from error
    with work as scratch:
        archive, folder = Path(scratch, "set.zip"), Path(scratch, name)
        folder.mkdir()
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, archive.open("wb") as out:
                shutil.copyfileobj(answer, out)
        except (urllib.error.URLError, OSError) as error:
            raise DataUnavailable(_how_to_supply(name, f"{url}: {error}")) from error
        try:
            with zipfile.ZipFile(archive) as content:
                for split in SPLITS:
                    file = f"{name}_{split}.ts"
                    member = next(m for m in content.namelist() if Path(m).name == file)
                    with content.open(member) as source, Path(folder, file).open("wb") as out:
                        shutil.copyfileobj(source, out)
        except (zipfile.BadZipFile, StopIteration) as error:
            raise DataCorrupt(
                f"{url} is no zip file with {name}_TRAIN.ts and {name}_TEST.ts"
            ) from error
        for split, pinned in config.sha256.items():
            found = sha256(folder / f"{name}_{split}.ts")
            if found != pinned:
                raise DataCorrupt(
                    f"{url}: {name}_{split}.ts has SHA-256 {found}, expected {pinned}. Fetch it "
                    "again; a changed set can be used from DATA_DIR and is then called a sample."
                )
        # Another process may have finished first: then its files, equal to these, stay.
        if not target.exists():
            folder.rename(target)
    files = locate(name)
    if files is None:
        raise DataCorrupt(f"{target} exists but does not hold the two files; remove it")
    return files


def load(config: DatasetConfig) -> LoadedSet:
    """Locate or fetch, verify and parse a set.

    Raises:
        DataUnavailable, DataCorrupt: see :func:`fetch` and :func:`read_ts`.
    """
    files = locate(config.name) or fetch(config)
    paths = dict(zip(SPLITS, (files.train, files.test), strict=True))
    digests = {split: sha256(path) for split, path in paths.items()}
    train, test = (_parse(paths[split], digests[split]) for split in SPLITS)
    kind, note = _judge(config, digests, train, test)
    return LoadedSet(train, test, kind, files.source, (note,) if note else ())


def _judge(
    config: DatasetConfig, digests: dict[str, str], train: TsFile, test: TsFile
) -> tuple[DataKind, str | None]:
    """Whether files are the published ones, and what to tell if that is not certain."""
    if config.sha256:
        changed = [split for split in SPLITS if digests[split] != config.sha256.get(split)]
        if not changed:
            return "real", None
        return "sample", f"{' and '.join(changed)} differ from the published files (SHA-256)"
    published = (config.train, config.test, config.channels, config.classes)
    found = (len(train.labels), len(test.labels), train.lengths.shape[1], len(train.classes))
    if None in published:
        return "sample", "no published checksum or sizes to compare the files with"
    if published != found:
        sizes = [" / ".join(map(str, numbers)) for numbers in (found, published)]
        return "sample", "train / test / channels / classes {}, published {}".format(*sizes)
    return "real", "no published checksum; sizes agree with the published ones"


def _parse(path: Path, digest: str) -> TsFile:
    """Parse a file, or take large ones from the cache of earlier parses."""
    if path.stat().st_size < CACHE_FROM_BYTES:
        return read_ts(path)
    cached = cache_dir() / "timeseries" / "parsed" / f"{path.stem}-v{CACHE_VERSION}-{digest}.npz"
    if os.path.exists(cached):
        try:
            with np.load(cached, allow_pickle=False) as arrays:
                return TsFile(
                    tuple(str(name) for name in arrays["classes"]),
                    *(arrays[key] for key in ("labels", "lengths", "values")),
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            log.warning("cache %s is damaged (%s) and is built again", cached, error)
    parsed = read_ts(path)
    try:
        _store(parsed, cached)
    except OSError as error:
        log.warning("CACHE_DIR cannot be written to; %s is parsed every time (%s)", path, error)
    return parsed


def _store(parsed: TsFile, cached: Path) -> None:
    """Write a cache file, whole or not at all."""
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cached.parent, suffix=".npz", delete=False) as scratch:
        try:
            np.savez(
                scratch,
                classes=np.array(parsed.classes),
                labels=parsed.labels,
                lengths=parsed.lengths,
                values=parsed.values,
            )
            scratch.flush()
            os.replace(scratch.name, cached)
        except BaseException:
            Path(scratch.name).unlink(missing_ok=True)
            raise
