"""Downloads through PyTorch Geometric's own dataset classes, into `CACHE_DIR`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.common.fetching import fetch_folder, reachable
from domains.common.files import cache_dir
from domains.contract import DataUnavailable

log = logging.getLogger(__name__)

BENCHMARK_URL = "https://data.pyg.org/datasets/benchmarking-gnns/{}_v2.zip"
DROPBOX_URL = "https://www.dropbox.com/s/{}.zip?dl=1"


@dataclass(frozen=True)
class Download:
    """How a set is fetched.

    Attributes:
        url: of the archive that the class fetches, for people and to see whether it answers.
        folder: what the class leaves below its root and is kept.
        make: has the class download and process all splits below a root.
    """

    url: str
    folder: str
    make: Callable[[Path], Any]


def _zinc(root: Path) -> Any:
    from torch_geometric.datasets import ZINC

    return ZINC(str(root / "ZINC"), subset=True)


def _benchmark(name: str) -> Download:
    def make(root: Path) -> Any:
        from torch_geometric.datasets import GNNBenchmarkDataset

        return GNNBenchmarkDataset(str(root / "GNNBenchmarkDataset"), name)

    return Download(BENCHMARK_URL.format(name), f"GNNBenchmarkDataset/{name}", make)


def _long_range(name: str, path: str) -> Download:
    def make(root: Path) -> Any:
        from torch_geometric.datasets import LRGBDataset

        return LRGBDataset(str(root / "LRGBDataset"), name)

    return Download(DROPBOX_URL.format(path), f"LRGBDataset/{name}", make)


DOWNLOADS: Mapping[str, Download] = {
    "zinc": Download(DROPBOX_URL.format("feo9qle74kg48gy/molecules"), "ZINC/subset", _zinc),
    "cifar10_sp": _benchmark("CIFAR10"),
    "pattern": _benchmark("PATTERN"),
    "cluster": _benchmark("CLUSTER"),
    "pascalvoc_sp": _long_range("pascalvoc-sp", "8x722ai272wqwl4/pascalvocsp"),
    "coco_sp": _long_range("coco-sp", "r6ihg1f4pmyjjy0/cocosp"),
    "pcqm_contact": _long_range("pcqm-contact", "qdag867u6h6i60y/pcqmcontact"),
    "peptides_func": _long_range("peptides-func", "ycsq37q8sxs1ou8/peptidesfunc"),
    "peptides_struct": _long_range("peptides-struct", "zgv4z8fcpmknhs8/peptidesstruct"),
}


def url(name: str) -> str:
    """Where the archive of a set lies."""
    return DOWNLOADS[name].url


def pyg_dir() -> Path:
    """Folder of `CACHE_DIR` where PyTorch Geometric's files go."""
    return cache_dir() / "graph" / "pyg"


def fetch(name: str, how_to_supply: str) -> None:
    """Download and process a set; only the processed files are kept.

    Args:
        name: of the set.
        how_to_supply: what to say if that fails.

    Raises:
        DataUnavailable: no network, nowhere to write to, or not what the class expects.
    """
    entry = DOWNLOADS[name]
    if not reachable(entry.url):
        raise DataUnavailable(how_to_supply)

    def fill(folder: Path) -> None:
        log.info("%s: download from %s", name, entry.url)
        try:
            entry.make(folder)
        except Exception as error:  # whatever the class, its transport or its unpickling raise
            reason = f"{type(error).__name__}: {error}"
            raise DataUnavailable(f"{how_to_supply} ({entry.url}: {reason})") from error
        _keep(folder, entry.folder)

    target = pyg_dir() / entry.folder
    fetch_folder(entry.url, target, fill, lambda reason: f"{how_to_supply} ({reason})")


def _keep(scratch: Path, folder: str) -> None:
    """Leave in `scratch` what the class put into `folder`, and nothing else."""
    made = scratch / folder / "processed"
    made.rename(scratch / "processed")
    for path in scratch.iterdir():
        if path.name != "processed":
            shutil.rmtree(path)
