"""Finds, fetches and checks the files of a data set."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from domains.common.fetching import download, fetch_folder, reachable
from domains.common.files import cache_dir, folders_named
from domains.contract import DataCorrupt, DataKind, DataSource, DataUnavailable
from domains.segmentation import ade20k
from domains.segmentation.camvid import listed
from domains.segmentation.config import DatasetConfig
from domains.segmentation.folders import Pair, paired

log = logging.getLogger(__name__)

SPLITS = ("train", "val")

SAMPLES = ("ade20k_coarse5", "camvid_sample")
"""Sets that hold a part of a published one: never in a table with numbers of the whole."""


@dataclass(frozen=True)
class Found:
    """The files of a data set.

    Attributes:
        folder: that holds them all.
        source: where it is, in words.
        pairs: by split.
    """

    folder: Path
    source: str
    pairs: Mapping[str, list[Pair]]


def kind(config: DatasetConfig) -> DataKind:
    """Whether a set is a published one, or the user's own, or a part of a published one."""
    return "sample" if config.name in SAMPLES else "real"


def locate(config: DatasetConfig) -> Found | None:
    """The least deep folder with all files of a set, below `DATA_DIR` or else `CACHE_DIR`.

    Raises:
        DataCorrupt: pictures and masks do not fit together.
        ValueError: the configuration does not say where the files are.
    """
    for where, folder in _folders(config):
        pairs = _pairs(config, folder)
        if pairs is not None and not _miscounted(config, pairs):
            return Found(folder, where, pairs)
    return None


def require(config: DatasetConfig) -> DataSource:
    """Say where a set will be read from: files that are here, or an archive that answers.

    Raises:
        DataUnavailable: neither; the message says which files to put where.
        DataCorrupt, ValueError: as :func:`locate`.
    """
    found = locate(config)
    if found is not None:
        return DataSource(kind(config), found.source)
    if not config.url:
        raise DataUnavailable(_how_to_supply(config, "no address is known"))
    if not reachable(config.url):
        raise DataUnavailable(_how_to_supply(config, f"{config.url} does not answer"))
    return DataSource(kind(config), f"to be fetched from {config.url}")


def obtain(config: DatasetConfig) -> Found:
    """The files of a set, fetched into `CACHE_DIR` unless they are here.

    Raises:
        DataUnavailable: no network, no address, or nowhere to write them to.
        DataCorrupt: the archive is not the published one, or as :func:`locate`.
        ValueError: as :func:`locate`, or an address without a checksum.
    """
    found = locate(config)
    if found is not None:
        return found
    if not config.url:
        raise DataUnavailable(_how_to_supply(config, "no address is known"))
    target = cache_dir() / "segmentation" / config.folder

    def fill(folder: Path) -> None:
        algorithm, digest = _checksum(config)
        log.info("%s: download from %s", config.name, config.url)
        archive = folder / "archive.zip"
        download(config.url, archive, digest, algorithm)
        ade20k.unpack(archive, config.folder, folder)
        archive.unlink()

    fetch_folder(config.url, target, fill, partial(_how_to_supply, config))
    found = locate(config)
    if found is None:
        raise DataCorrupt(f"{target} does not hold the whole set; remove it to fetch it again")
    return found


def _checksum(config: DatasetConfig) -> tuple[str, str]:
    """Algorithm and digest that the archive must have."""
    if config.sha256:
        return "sha256", config.sha256
    if config.url == ade20k.URL:
        return "sha1", ade20k.SHA1
    raise ValueError(
        f"dataset.url={config.url} needs dataset.sha256, the SHA-256 of the zip: nothing is "
        "fetched unverified"
    )


def _folders(config: DatasetConfig) -> list[tuple[str, Path]]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.folder):
        raise ValueError(
            f"dataset.folder={config.folder!r} is no name of a folder; allowed: letters, digits, "
            "'.', '_' and '-'. It names the folder below DATA_DIR that holds pictures and masks"
        )
    for split in SPLITS:
        keys = ("lists",) if config.layout == "lists" else ("images", "masks")
        for key in keys:
            if not getattr(config, key).get(split):
                raise ValueError(
                    f"dataset.{key}.{split} is not given; with dataset.layout={config.layout} it "
                    f"names the {'text file' if key == 'lists' else 'folder'} of that split, "
                    f"relative to {config.folder}/"
                )
    return list(folders_named(config.folder))


def _places(config: DatasetConfig, split: str) -> list[str]:
    """Paths relative to the set's folder without which a split cannot be read."""
    if config.layout == "lists":
        return [config.lists[split]]
    return [config.images[split], config.masks[split]]


def _pairs(config: DatasetConfig, folder: Path) -> dict[str, list[Pair]] | None:
    """Pairs of both splits, None where a folder or list is missing or empty."""
    if any(_lacking(config, folder)):
        return None
    if config.layout == "lists":
        return {split: listed(folder / config.lists[split]) for split in SPLITS}
    return {
        split: paired(folder / config.images[split], folder / config.masks[split])
        for split in SPLITS
    }


def _lacking(config: DatasetConfig, folder: Path) -> list[str]:
    there = os.path.isfile if config.layout == "lists" else os.path.isdir
    places = [place for split in SPLITS for place in _places(config, split)]
    return [place for place in places if not there(folder / place)]


def _miscounted(config: DatasetConfig, pairs: Mapping[str, list[Pair]]) -> list[str]:
    """What to say of splits that do not have the published number of pictures, or none."""
    said = []
    for split, found in pairs.items():
        expected = config.pictures.get(split)
        if expected is None and not found:
            said.append(f"no picture in '{split}'")
        elif expected is not None and len(found) != expected:
            said.append(f"{len(found):,} pictures in '{split}' instead of {expected:,}")
    return said


def _how_to_supply(config: DatasetConfig, reason: str) -> str:
    places = [place for split in SPLITS for place in _places(config, split)]
    advice = (
        f"The files of {config.name} are not here and cannot be fetched ({reason}). Put "
        f"{', '.join(places[:-1])} and {places[-1]} into a folder {config.folder}/ anywhere "
        f"under DATA_DIR (now {os.environ.get('DATA_DIR') or 'not set'})"
    )
    advice += f"; {config.url} holds them." if config.url else "."
    for where, folder in _folders(config):
        pairs = _pairs(config, folder)
        faults = (
            [f"no {place}" for place in _lacking(config, folder)]
            if pairs is None
            else _miscounted(config, pairs)
        )
        return f"{advice} The folder in {where} has {', '.join(faults)}."
    return advice
