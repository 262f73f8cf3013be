"""Finds the frames of a set, and says what is missing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from domains.common.files import folders_named, sha256
from domains.common.prepared import prepared
from domains.contract import DataCorrupt, DataKind, DataSource, DataUnavailable
from domains.pointcloud import folder, info_files, nuscenes
from domains.pointcloud.config import DatasetConfig
from domains.pointcloud.frames import Frame, FrameFiles, refuse_sizes
from domains.pointcloud.nuscenes import Listing

SPLITS = ("train", "val")
PUBLISHED = {"train": 28_130, "val": 6_019}
"""Key frames of nuScenes-lidarseg."""

VERSION = 1
"""Raised when the same tables give another list of frames."""

LISTING = "frames.json"

HOW_TO_GET = (
    "nuScenes needs a registration (https://www.nuscenes.org, free for non-commercial use), so "
    "nothing is fetched. Unpack into one folder: the metadata and the ten file blobs of its "
    "trainval set (of the blobs the LiDAR is enough) and the archive nuScenes-lidarseg-all-v1.0"
)

ONE_FOLDER = (
    "frames of one folder, the last {val} for validation. Neighbouring frames of a drive are "
    "nearly the same, so the scores are optimistic and compare with nothing but one another"
)


@dataclass(frozen=True)
class FoundSet:
    """Frames that can be read.

    Attributes:
        splits: frames of `train` and `val`.
        kind: see :data:`domains.contract.DataKind`.
        source: for people.
        fingerprint: `sha256:...`.
        notes: what a reader must know.
    """

    splits: Mapping[str, Sequence[Frame]]
    kind: DataKind
    source: str
    fingerprint: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Tree:
    """A copy of nuScenes.

    Attributes:
        source: for people.
        root: what the listed paths start from.
        lists: the files that the frames are listed from.
        read: lists them.
    """

    source: str
    root: Path
    lists: Sequence[Path]
    read: Callable[[], Listing]


def require(config: DatasetConfig) -> DataSource:
    """Say where the frames will be read from; looks at names alone.

    Raises:
        DataUnavailable: they are not here; the message says which files to put where.
    """
    if config.layout == "folder":
        where, _, _ = _folder(config)
        return DataSource("sample", where)
    return DataSource(_kind(config), _tree(config).source)


def load(config: DatasetConfig) -> FoundSet:
    """The frames of a set. Of nuScenes all files are looked at once, when the list is made.

    Raises:
        DataUnavailable: frames are not here; the message says which files to put where.
        DataCorrupt: what lists them is damaged, or there are not as many as were published.
    """
    return _load_folder(config) if config.layout == "folder" else _load_tree(config)


def _kind(config: DatasetConfig) -> DataKind:
    published = {"train": config.train, "val": config.val} == PUBLISHED
    return "real" if published else "sample"


def _tree(config: DatasetConfig) -> _Tree:
    """The first copy with a list of its frames, the tables of the data set before info files.

    Raises:
        DataUnavailable: there is none.
    """
    found = list(folders_named(config.folder))
    for where, root in found:
        if not nuscenes.lacking(root):
            return _Tree(
                f"{where}, listed by {nuscenes.TABLES}",
                root,
                [root / nuscenes.TABLES / name for name in nuscenes.NEEDED],
                lambda root=root: nuscenes.list_frames(root),  # type: ignore[misc]
            )
    for where, root in found:
        if (files := info_files.info_files(root)) is not None:
            return _Tree(
                f"{where}, listed by {' and '.join(files[split].name for split in SPLITS)}",
                info_files.raw_folder(root),
                [files[split] for split in SPLITS],
                lambda files=files: info_files.list_frames(files),  # type: ignore[misc]
            )
    raise DataUnavailable(_how_to_supply(config, found))


def _load_tree(config: DatasetConfig) -> FoundSet:
    tree = _tree(config)
    known = [VERSION, str(tree.root.resolve()), config.train, config.val]
    content = [*known, *(sha256(path) for path in tree.lists)]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    made = prepared(
        f"pointcloud/{config.name}-{digest[:12]}", lambda work: _list(config, tree, work)
    )
    listing = json.loads((made.folder / LISTING).read_text(encoding="utf-8"))
    return FoundSet(
        splits={split: _frames(tree.root, listing[split]) for split in SPLITS},
        kind=_kind(config),
        source=tree.source,
        fingerprint=f"sha256:{made.facts['fingerprint']}",
        notes=("the fingerprint covers names and sizes of all files",),
    )


def _list(config: DatasetConfig, tree: _Tree, work: Path) -> dict[str, str]:
    """List the frames, look for all their files, and write the list into a folder."""
    listing = tree.read()
    for split in SPLITS:
        if (found := len(listing[split])) != (expected := getattr(config, split)):
            raise DataCorrupt(
                f"{tree.source}: {found:,} key frames in {split}, expected {expected:,} "
                f"(dataset.{split}). Is it another release, or the mini set?"
            )
    sizes = _sizes(config, tree, listing)
    (work / LISTING).write_text(json.dumps(listing), encoding="utf-8")
    text = json.dumps([listing, sizes], sort_keys=True)
    return {"fingerprint": hashlib.sha256(text.encode()).hexdigest()}


def _sizes(config: DatasetConfig, tree: _Tree, listing: Listing) -> dict[str, list[int]]:
    """Bytes of the points files of each split; what lacks is told all at once.

    Raises:
        DataUnavailable: files are not there.
        DataCorrupt: the two files of a frame cannot belong together.
    """
    missing: list[str] = []
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for frame in listing[split]:
            found = [_size(tree.root / name) for name in frame]
            missing += [name for name, size in zip(frame, found, strict=True) if size is None]
            points, labels = found
            if points is not None and labels is not None:
                refuse_sizes(points, labels, *(str(tree.root / name) for name in frame))
                sizes[split].append(points)
    if missing:
        total = 2 * sum(len(frames) for frames in listing.values())
        raise DataUnavailable(
            f"{len(missing):,} of {total:,} files of {config.name} are not in {tree.root}, the "
            f"first is {missing[0]}. {HOW_TO_GET}."
        )
    return sizes


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _frames(root: Path, names: Sequence[Sequence[str]]) -> list[FrameFiles]:
    return [FrameFiles(root / points, root / labels) for points, labels in names]


def _folder(config: DatasetConfig) -> tuple[str, Path, list[tuple[str, str]]]:
    """Where a plain folder is, in words, the folder, and its frames.

    Raises:
        DataUnavailable: no folder of that name has as many frames as the configuration says.
    """
    seen = []
    for where, root in folders_named(config.folder):
        frames = folder.pairs(root)
        if len(frames) == config.train + config.val:
            return where, root, frames
        seen.append(f"{where} has {len(frames):,}")
    raise DataUnavailable(
        f"No folder {config.folder}/ with {config.train + config.val:,} frames (dataset.train="
        f"{config.train:,} and dataset.val={config.val:,}) is below DATA_DIR (now "
        f"{os.environ.get('DATA_DIR') or 'not set'}){': ' if seen else ''}{', '.join(seen)}. A "
        f"frame is NAME{folder.POINTS} in it or in samples/LIDAR_TOP/, and NAME{folder.LABELS} "
        "beside it or in a folder of lidarseg/."
    )


def _load_folder(config: DatasetConfig) -> FoundSet:
    where, root, names = _folder(config)
    splits = {split: _frames(root, part) for split, part in folder.split(names, config.val).items()}
    digests = {
        split: [(sha256(frame.points), sha256(frame.labels)) for frame in frames]
        for split, frames in splits.items()
    }
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
    return FoundSet(
        splits=splits,
        kind="sample",
        source=where,
        fingerprint=f"sha256:{digest}",
        notes=(ONE_FOLDER.format(val=config.val),),
    )


def _how_to_supply(config: DatasetConfig, found: Sequence[tuple[str, Path]]) -> str:
    advice = (
        f"The files of {config.name} are not here. {HOW_TO_GET}. Name the folder {config.folder}/ "
        f"and put it anywhere under DATA_DIR (now {os.environ.get('DATA_DIR') or 'not set'}); or "
        "one that Pointcept prepared, with info/nuscenes_infos_10sweeps_{train,val}.pkl and raw/."
    )
    for where, root in found:
        tables = ", ".join(f"{nuscenes.TABLES}/{name}" for name in nuscenes.lacking(root))
        advice += f" The folder in {where} lacks {tables}."
    return advice
