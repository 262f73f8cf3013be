"""Finds, fetches and verifies the files of a UEA set, and says how far they can be trusted."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from domains.common.fetching import download, fetch_folder, reachable
from domains.common.files import cache_dir, folders_named, sha256
from domains.common.prepared import prepared
from domains.contract import DataCorrupt, DataKind, DataSource, DataUnavailable
from domains.timeseries.config import DatasetConfig
from domains.timeseries.ts_format import TsFile, read_ts

ARCHIVE_URL = "https://www.timeseriesclassification.com/aeon-toolkit/{name}.zip"
"""Where the archive offers a set: a zip with its `.ts` files."""

SPLITS = ("TRAIN", "TEST")
CACHE_FROM_BYTES = 32 * 2**20
"""Parsing takes about 1 s for 40 MB of text; smaller files are parsed anew every time."""

CACHE_VERSION = 2
ARRAYS = ("labels", "lengths", "values")


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
    fetch_folder(
        url, target, lambda folder: _fill(config, url, folder), partial(_how_to_supply, name)
    )
    files = locate(name)
    if files is None:
        raise DataCorrupt(f"{target} exists but does not hold the two files; remove it")
    return files


def _fill(config: DatasetConfig, url: str, folder: Path) -> None:
    """Fetch the archive of a set and leave its two files, verified, in a folder."""
    archive = folder / "set.zip"
    download(url, archive, digest=None)
    names = {split: f"{config.name}_{split}.ts" for split in SPLITS}
    try:
        with zipfile.ZipFile(archive) as content:
            for name in names.values():
                member = next(m for m in content.namelist() if Path(m).name == name)
                with content.open(member) as source, (folder / name).open("wb") as out:
                    shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, StopIteration) as error:
        raise DataCorrupt(f"{url} is no zip file with {' and '.join(names.values())}") from error
    archive.unlink()
    for split, pinned in config.sha256.items():
        found = sha256(folder / names[split])
        if found != pinned:
            raise DataCorrupt(
                f"{url}: {names[split]} has SHA-256 {found}, expected {pinned}. Fetch it again; "
                "a changed set can be used from DATA_DIR and is then called a sample."
            )


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
    name = f"timeseries/{path.stem}-v{CACHE_VERSION}-{digest[:16]}"
    parsed = prepared(name, lambda folder: _write(read_ts(path), folder))
    arrays = {key: np.load(parsed.folder / f"{key}.npy", allow_pickle=False) for key in ARRAYS}
    return TsFile(tuple(parsed.facts["classes"]), **arrays)


def _write(parsed: TsFile, folder: Path) -> dict[str, list[str]]:
    for key in ARRAYS:
        np.save(folder / f"{key}.npy", getattr(parsed, key), allow_pickle=False)
    return {"classes": list(parsed.classes)}
