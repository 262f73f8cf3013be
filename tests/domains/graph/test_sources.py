"""Where the graphs of a set are found, and what is said where they are not."""

from __future__ import annotations

import importlib.util
import pickle
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import InMemoryDataset

from domains.contract import DataUnavailable
from domains.graph import download, sources
from domains.graph.config import GENERATED

from .graphs import SETS, dataset, mini, zinc_like
from .test_readers import save_new, write_npz


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    """An empty DATA_DIR and CACHE_DIR, and no network."""

    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "create_connection", refuse)
    return tmp_path


def write_splits(folder: Path, file: str = "{split}.pt", only: tuple[str, ...] = sources.SPLITS):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, split in enumerate(sources.SPLITS):
        if split in only:
            save_new(zinc_like(3 + seed, seed), folder / file.format(split=split))


FORMS = {
    "zinc": ["ZINC/subset/processed/{split}.pt", "zinc/pyg_processed/{split}.pt"],
    "cifar10_sp": ["GNNBenchmarkDataset/CIFAR10/processed/{split}_data.pt"],
    "pattern": ["PATTERN/processed/{split}_data.pt"],
    "cluster": ["GNNBenchmarkDataset/CLUSTER/processed/{split}_data.pt"],
    "pascalvoc_sp": [
        "LRGBDataset/pascalvoc-sp/processed/{split}.pt",
        "VOCSuperpixels/slic_compactness_30/edge_wt_region_boundary/processed/{split}.pt",
    ],
    "coco_sp": ["coco-sp/processed/{split}.pt"],
    "pcqm_contact": ["LRGBDataset/pcqm-contact/processed/{split}.pt"],
    "peptides_func": ["peptides-func/processed/{split}.pt"],
    "peptides_struct": ["LRGBDataset/peptides-struct/processed/{split}.pt"],
}


@pytest.mark.parametrize("inner", ["graphs", ""])
@pytest.mark.parametrize(("name", "form"), [(n, f) for n, forms in FORMS.items() for f in forms])
def test_layouts_of_the_field_are_found(folders, name, form, inner):
    path = folders / "data" / inner / form
    write_splits(path.parent, path.name)
    found = sources.find(dataset(name))
    assert found.kind == "real"
    assert found.description.startswith("DATA_DIR/graphs" if inner else "DATA_DIR: ")
    assert {split: len(graphs) for split, graphs in found.read().items()} == {
        "train": 3, "val": 4, "test": 5,
    }  # fmt: skip
    assert sources.require(dataset(name)).kind == "real"


@pytest.mark.parametrize("name", ["zinc", "peptides_func", "coco_sp"])
def test_half_a_set_is_not_found(folders, name):
    path = folders / "data" / FORMS[name][0]
    write_splits(path.parent, path.name, only=("train", "val"))
    assert sources.at_hand(dataset(name)) is None


@pytest.mark.parametrize(
    ("name", "path", "splits"),
    [
        (
            "peptides_struct",
            "peptides-structural/processed/geometric_data_processed.pt",
            "peptides-structural/splits_random_stratified_peptide_structure.pickle",
        ),
        (
            "peptides_func",
            "peptides-functional/processed/geometric_data_processed.pt",
            "peptides-functional/splits_random_stratified_peptide.pickle",
        ),
        (
            "pcqm_contact",
            "pcqm4m-v2-contact/530k/processed/geometric_data_processed.pt",
            "pcqm4m-v2-contact/530k/530k_shuffle_split_dict.pt",
        ),
    ],
)
def test_one_file_with_numbers_of_the_splits_is_found(folders, name, path, splits):
    graphs = zinc_like(6)
    numbers = {"train": np.array([5, 0, 3]), "val": np.array([1]), "test": np.array([4, 2])}
    root = folders / "data"
    (root / path).parent.mkdir(parents=True)
    InMemoryDataset.save(graphs, str(root / path))
    if splits.endswith(".pt"):
        torch.save(numbers, root / splits)
    else:
        (root / splits).write_bytes(pickle.dumps(numbers))
    found = sources.find(dataset(name))
    assert found.kind == "real"
    for split, part in found.read().items():
        expected = [len(graphs[i].x) for i in numbers[split]]
        assert part.counts("node").tolist() == expected
        assert torch.equal(part.arrays["x"], torch.cat([graphs[i].x for i in numbers[split]]))


def test_other_training_molecules_of_zinc_make_a_sample(folders):
    folder = folders / "data" / "graphs" / "zinc"
    folder.mkdir(parents=True)
    for split in ("val", "test"):
        write_npz(folder / f"zinc12k_{split}.npz", zinc_like(3))
    assert sources.at_hand(mini()) is None
    write_npz(folder / "zinc_train10k.npz", zinc_like(6))
    found = sources.find(mini())
    assert found.kind == "sample"
    assert "not the published training split" in found.notes[0]
    assert "zinc_train10k.npz" in found.description
    write_npz(folder / "zinc12k_train.npz", zinc_like(6))
    found = sources.find(mini())
    assert found.kind == "real"
    assert found.notes == ()


def test_sets_with_a_generator_need_no_files(folders):
    for name in GENERATED:
        config = dataset(name, train=7, val=3, test=2)
        found = sources.find(config)
        assert found.kind == sources.require(config).kind == "regenerated"
        assert "generator seed 0" in found.description
        assert {s: len(g) for s, g in found.read().items()} == {"train": 7, "val": 3, "test": 2}


def test_origin_chooses_between_files_and_the_generator(folders):
    path = folders / "data" / FORMS["pattern"][0]
    write_splits(path.parent, path.name)
    kinds = {o: sources.find(dataset("pattern", origin=o)).kind for o in ("auto", "generated")}
    assert kinds == {"auto": "real", "generated": "regenerated"}
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(DataUnavailable, match=r"or leave dataset\.origin=auto"):
        sources.find(dataset("pattern", origin="published"))


def test_a_set_without_generator_cannot_be_generated():
    with pytest.raises(ValueError, match=r"origin=generated: zinc has no generator.*pattern"):
        dataset("zinc", origin="generated")
    with pytest.raises(ValueError, match="origin='own' is unknown; allowed: auto, published"):
        dataset("pattern", origin="own")


@pytest.mark.parametrize("name", [name for name in SETS if name not in GENERATED])
def test_missing_set_without_network_says_which_file_to_put_where(folders, name):
    for ask in (sources.require, sources.find):
        with pytest.raises(DataUnavailable) as error:
            ask(dataset(name))
        text = str(error.value)
        assert sources.LAYOUTS[name].splits[0].path.format(split="{train,val,test}") in text
        assert str(folders / "data") in text
        assert "http" in text


def test_unanswered_name_look_up_does_not_hang(folders, monkeypatch):
    finished = threading.Event()

    def hang(*args, **kwargs):
        finished.wait()
        raise OSError("name look-up failed")

    monkeypatch.setattr(socket, "create_connection", hang)
    start = time.perf_counter()
    with pytest.raises(DataUnavailable):
        sources.require(dataset("zinc"))
    finished.set()
    assert time.perf_counter() - start < 1.5


def test_tables_without_rdkit_say_what_to_install(folders, monkeypatch):
    folder = folders / "data" / "peptides-functional"
    (folder / "raw").mkdir(parents=True)
    (folder / "raw" / "peptide_multi_class_dataset.csv.gz").touch()
    (folder / "splits_random_stratified_peptide.pickle").touch()
    assert sources.require(dataset("peptides_func")).kind == "real"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataUnavailable, match="read with rdkit, which is not installed: `make"):
        sources.require(dataset("peptides_func"))


def test_unknown_set_is_refused():
    with pytest.raises(ValueError, match=r"dataset.name='mutag' is no set of this domain; there"):
        sources.find(mini(name="mutag"))


@pytest.fixture
def network(folders, monkeypatch):
    """A server that answers, and a class that downloads three splits of graphs."""
    made = []

    def make(root: Path) -> None:
        made.append(root)
        write_splits(root / "ZINC" / "subset" / "processed")
        (root / "ZINC" / "raw").mkdir()

    class Answer:
        def close(self) -> None: ...

    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: Answer())
    entry = download.Download("https://www.dropbox.com/s/x", "ZINC/subset", make)
    monkeypatch.setitem(download.DOWNLOADS, "zinc", entry)
    return made


def test_download_goes_to_the_cache_whole_and_once(folders, network):
    assert sources.require(mini()).description.startswith("to be downloaded")
    found = sources.find(mini())
    assert found.kind == "real"
    assert found.description == "CACHE_DIR: ZINC/subset/processed/{split}.pt"
    assert sources.find(mini()).read().keys() == {"train", "val", "test"}
    assert len(network) == 1
    left = sorted(p.name for p in (folders / "cache/graph/pyg/ZINC").iterdir())
    assert left == [".subset.lock", "subset"]


def test_failed_download_leaves_nothing_and_says_what_happened(folders, network, monkeypatch):
    def make(root: Path) -> None:
        (root / "ZINC").mkdir()
        raise RuntimeError("the page has moved")

    entry = download.Download("https://www.dropbox.com/s/x", "ZINC/subset", make)
    monkeypatch.setitem(download.DOWNLOADS, "zinc", entry)
    with pytest.raises(DataUnavailable, match=r"Put one of these .* the page has moved"):
        sources.find(mini())
    assert [p.name for p in (folders / "cache/graph/pyg/ZINC").iterdir()] == [".subset.lock"]


@pytest.mark.parametrize("name", SETS)
def test_addresses_and_folders_are_those_of_pytorch_geometric(name, tmp_path, monkeypatch):
    """The class is asked for what it would download, and where it would put it."""
    asked: list[str] = []

    class Stop(Exception):
        pass

    def note(url: str, folder: str, *args, **kwargs) -> str:
        asked.append(url)
        raise Stop

    for module in ("zinc", "gnn_benchmark_dataset", "lrgb"):
        monkeypatch.setattr(f"torch_geometric.datasets.{module}.download_url", note)
    entry = download.DOWNLOADS[name]
    with pytest.raises(Stop):
        entry.make(tmp_path)
    assert asked == [entry.url]
    raw = {p.relative_to(tmp_path).parent.as_posix() for p in tmp_path.rglob("raw")}
    assert raw == {entry.folder.removesuffix("/subset")} or not raw
    layouts = [form.path for form in sources.LAYOUTS[name].splits]
    assert any(path.startswith(f"{entry.folder}/processed/") for path in layouts)
