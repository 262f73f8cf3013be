"""Where the graphs of a set come from: files that are here, the generator, or a download."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from domains.common.fetching import reachable
from domains.contract import DataKind, DataSource, DataUnavailable
from domains.graph import download, sbm
from domains.graph.config import GENERATED, DatasetConfig
from domains.graph.molecules import INSTALL
from domains.graph.peptides import read_functional, read_split, read_structural
from domains.graph.pyg_files import read_npz, read_processed
from domains.graph.store import SPLITS, PackedGraphs

Read = Callable[[Path], PackedGraphs]
Splits = Mapping[str, PackedGraphs]


@dataclass(frozen=True)
class Source:
    """A place that a set can be read from.

    Attributes:
        kind: of the data, as long as checksums do not say otherwise.
        description: for people.
        read: gives the graphs by split, as they are there.
        files: what is read.
        made_with: package and version that the graphs depend on beside the files.
        notes: what a reader must know.
    """

    kind: DataKind
    description: str
    read: Callable[[], Splits]
    files: Sequence[Path] = ()
    made_with: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """A file of a single split, relative to a root.

    Attributes:
        path: of the file, with `{split}` in it.
        read: its reader.
        only: the splits that it may stand for.
        note: set where it is not the published split.
    """

    path: str
    read: Read = read_processed
    only: Sequence[str] = SPLITS
    note: str = ""


@dataclass(frozen=True)
class Whole:
    """A file of all graphs and one with the numbers of each split, relative to a root."""

    path: str
    splits: Sequence[str]
    read: Read = read_processed
    needs: str = ""


@dataclass(frozen=True)
class Layout:
    """Everything that is known of the files of a set, the preferred first."""

    splits: Sequence[Split]
    wholes: Sequence[Whole] = ()


def _pyg(*folders: str, file: str = "{split}.pt") -> tuple[Split, ...]:
    return tuple(Split(f"{folder}/processed/{file}") for folder in folders)


def _benchmark(name: str) -> Layout:
    return Layout(_pyg(f"GNNBenchmarkDataset/{name}", name, file="{split}_data.pt"))


def _superpixels(name: str, graphgps: str) -> Layout:
    inner = "slic_compactness_30/edge_wt_region_boundary"
    return Layout(_pyg(f"LRGBDataset/{name}", name, f"{graphgps}/{inner}"))


def _peptides(name: str, graphgps: str, raw: str, read: Read, *splits: str) -> Layout:
    tables = tuple(f"{graphgps}/splits_random_stratified_{s}.pickle" for s in splits)
    return Layout(
        _pyg(f"LRGBDataset/{name}", name),
        (
            Whole(f"{graphgps}/processed/geometric_data_processed.pt", tables),
            Whole(f"{graphgps}/raw/{raw}.csv.gz", tables, read, needs="rdkit"),
        ),
    )


OTHER_TRAINING = (
    "training graphs are zinc_train10k, 10,000 other molecules of the pool that the published ones "
    "were drawn from, not the published training split; validation and test are the published"
)

LAYOUTS: Mapping[str, Layout] = {
    "zinc": Layout(
        (
            *_pyg("ZINC/subset", "zinc/subset"),
            Split("zinc/pyg_processed/{split}.pt"),
            Split("zinc/zinc12k_{split}.npz", read_npz),
            Split("zinc/zinc_train10k.npz", read_npz, only=("train",), note=OTHER_TRAINING),
        )
    ),
    "cifar10_sp": _benchmark("CIFAR10"),
    "pattern": _benchmark("PATTERN"),
    "cluster": _benchmark("CLUSTER"),
    "pascalvoc_sp": _superpixels("pascalvoc-sp", "VOCSuperpixels"),
    "coco_sp": _superpixels("coco-sp", "COCOSuperpixels"),
    "pcqm_contact": Layout(
        _pyg("LRGBDataset/pcqm-contact", "pcqm-contact"),
        (
            Whole(
                "pcqm4m-v2-contact/530k/processed/geometric_data_processed.pt",
                ("pcqm4m-v2-contact/530k/530k_shuffle_split_dict.pt",),
            ),
        ),
    ),
    "peptides_func": _peptides(
        "peptides-func",
        "peptides-functional",
        "peptide_multi_class_dataset",
        read_functional,
        "peptide",
    ),
    "peptides_struct": _peptides(
        "peptides-struct",
        "peptides-structural",
        "peptide_structure_normalized_dataset",
        read_structural,
        "peptide_structure",
        "peptide",
    ),
}
"""By set, the files that it is read from."""


def roots() -> Iterator[tuple[str, Path]]:
    """Folders that layouts are looked for in, with their names for people."""
    if data := os.environ.get("DATA_DIR"):
        yield "DATA_DIR/graphs", Path(data, "graphs")
        yield "DATA_DIR", Path(data)
    yield "CACHE_DIR", download.pyg_dir()


def find(config: DatasetConfig) -> Source:
    """The source of a set, downloaded now if it has to be.

    Raises:
        DataUnavailable: there is none; the message says which files to put where.
    """
    found = at_hand(config)
    if found is None:
        download.fetch(config.name, _how_to_supply(config))
        found = at_hand(config)
    if found is None:
        raise DataUnavailable(_how_to_supply(config))
    return found


def require(config: DatasetConfig) -> DataSource:
    """Say where a set will be read from, without reading it.

    Raises:
        DataUnavailable: nowhere; the message says which files to put where.
    """
    found = at_hand(config)
    if found is not None:
        return DataSource(found.kind, found.description)
    if not reachable(download.url(config.name)):
        raise DataUnavailable(_how_to_supply(config))
    return DataSource(
        "real", f"to be downloaded by PyTorch Geometric from {download.url(config.name)}"
    )


def at_hand(config: DatasetConfig) -> Source | None:
    """A source that needs no network, None if there is none.

    Raises:
        ValueError: not the name of a set.
        DataUnavailable: files are here, but a package that reads them is not.
    """
    if config.name not in LAYOUTS:
        raise ValueError(
            f"dataset.name={config.name!r} is no set of this domain; there are {', '.join(LAYOUTS)}"
        )
    if config.origin != "generated":
        for label, root in roots():
            found = _of_splits(config.name, label, root) or _of_whole(config.name, label, root)
            if found is not None:
                return found
    if config.name in GENERATED and config.origin != "published":
        sizes = {split: getattr(config, split) for split in SPLITS}
        return Source(
            "regenerated",
            f"{config.name} drawn by its published procedure, generator seed "
            f"{config.generator_seed}",
            partial(sbm.generate, config.name, sizes, config.generator_seed),
            made_with=_version("numpy"),
        )
    return None


def _of_splits(name: str, label: str, root: Path) -> Source | None:
    """Files of single splits in one root. Every split takes the first that is there."""
    chosen: dict[str, tuple[Path, Split]] = {}
    for split in SPLITS:
        for form in LAYOUTS[name].splits:
            path = root / form.path.format(split=split)
            if split in form.only and os.path.isfile(path):
                chosen[split] = path, form
                break
        else:
            return None
    notes = tuple(form.note for _, form in chosen.values() if form.note)
    shown = sorted({form.path for _, form in chosen.values()})
    return Source(
        "sample" if notes else "real",
        f"{label}: {', '.join(shown)}",
        lambda: {split: form.read(path) for split, (path, form) in chosen.items()},
        files=[path for path, _ in chosen.values()],
        notes=notes,
    )


def _of_whole(name: str, label: str, root: Path) -> Source | None:
    """A file of all graphs and one of numbers in one root."""
    for form in LAYOUTS[name].wholes:
        path = root / form.path
        splits = next((root / s for s in form.splits if os.path.isfile(root / s)), None)
        if splits is None or not os.path.isfile(path):
            continue
        if form.needs and importlib.util.find_spec(form.needs) is None:
            raise DataUnavailable(
                f"{path} is read with {form.needs}, which is not installed: {INSTALL}"
            )
        return Source(
            "real",
            f"{label}: {form.path}, {splits.relative_to(root)}",
            partial(_read_whole, form.read, path, splits),
            files=[path, splits],
            made_with=_version(form.needs),
        )
    return None


def _read_whole(read: Read, path: Path, splits: Path) -> Splits:
    graphs = read(path)
    numbers = read_split(splits, len(graphs))
    return {split: graphs.select(torch.from_numpy(rows)) for split, rows in numbers.items()}


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}" if package else ""


def _how_to_supply(config: DatasetConfig) -> str:
    layout = LAYOUTS[config.name]
    preferred = layout.splits[0].path.format(split="{train,val,test}")
    ways = [f"{preferred} (as torch_geometric writes it)"]
    ways += [f"{w.path} with {w.splits[0]}" for w in layout.wholes]
    if config.name == "zinc":
        ways.append("zinc/zinc12k_{train,val,test}.npz")
    generated = "; or leave dataset.origin=auto, and the set is generated" * (
        config.name in GENERATED
    )
    return (
        f"The files of {config.name} are not here and cannot be downloaded. Put one of these under "
        f"DATA_DIR (now {os.environ.get('DATA_DIR') or 'not set'}), or under its folder graphs/: "
        f"{'; '.join(ways)}. They come from {download.url(config.name)}{generated}."
    )
