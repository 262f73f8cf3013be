"""Files of PyTorch Geometric of old and new form, arrays, pickles: read, or refused by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from domains.common.plain_pickle import read_pickle, read_torch
from domains.contract import DataCorrupt
from domains.graph.peptides import read_split
from domains.graph.pyg_files import read_npz, read_processed

from .graphs import packed, zinc_like


def save_new(graphs: list[Data], path: Path) -> None:
    """As PyTorch Geometric writes since 2.3: a dictionary, slices, the class."""
    InMemoryDataset.save(graphs, str(path))


def save_old(graphs: list[Data], path: Path) -> None:
    """As GraphGPS and PyTorch Geometric before 2.3 wrote: an object and a defaultdict."""
    torch.save(InMemoryDataset.collate(graphs), path)


FORMS = pytest.mark.parametrize("save", [save_new, save_old])


def assert_same(found, expected) -> None:
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert torch.equal(found.arrays[name].reshape(array.shape), array), name
    for axis, ptr in expected.ptr.items():
        assert torch.equal(found.ptr[axis], ptr), axis


@FORMS
def test_processed_files_hold_what_was_saved(tmp_path, save):
    graphs = zinc_like(9)
    save(graphs, tmp_path / "train.pt")
    assert_same(read_processed(tmp_path / "train.pt"), packed(graphs))


@FORMS
def test_labels_of_nodes_and_of_graphs_are_told_apart(tmp_path, save):
    graphs = zinc_like(9, sizes=(2, 9))
    for graph in graphs:
        graph.y = torch.arange(len(graph.x))
    save(graphs, tmp_path / "train.pt")
    found = read_processed(tmp_path / "train.pt")
    assert "graph_y" not in found.arrays
    assert torch.equal(found.arrays["node_y"], torch.cat([graph.y for graph in graphs]))


@FORMS
def test_positions_stand_behind_the_features(tmp_path, save):
    """CIFAR10: three colours and two coordinates, in files of their own fields."""
    graphs = zinc_like(4)
    for graph in graphs:
        graph.x, graph.pos = torch.rand(len(graph.x), 3), torch.rand(len(graph.x), 2)
    save(graphs, tmp_path / "train.pt")
    x = torch.cat([torch.cat([graph.x, graph.pos], 1) for graph in graphs])
    assert torch.equal(read_processed(tmp_path / "train.pt").arrays["x"], x)


@FORMS
@pytest.mark.parametrize("name", ["edge_label_index", "edge_index_labeled"])
def test_stored_negatives_are_left_out(tmp_path, save, name):
    graphs = zinc_like(3, sizes=(6, 9))
    contacts = [[[0, 5], [5, 0]], [], [[1, 4], [4, 1], [2, 5], [5, 2]]]
    for graph, positive in zip(graphs, contacts, strict=True):
        del graph.y
        pairs = torch.tensor([*positive, [0, 1], [1, 0], [1, 1]])
        graph[name] = pairs.t().contiguous()
        graph.edge_label = torch.tensor([1] * len(positive) + [0, 0, 0])
    save(graphs, tmp_path / "train.pt")
    found = read_processed(tmp_path / "train.pt")
    assert found.arrays["contacts"].tolist() == [pair for one in contacts for pair in one]
    assert found.ptr["contact"].tolist() == [0, 2, 2, 6]
    assert "graph_y" not in found.arrays


def write_npz(path: Path, graphs: list[Data], **changes: np.ndarray) -> None:
    whole = packed(graphs)
    arrays = {
        "x": whole.arrays["x"].numpy().astype(np.uint8)[:, 0],
        "edge_index": whole.arrays["edges"].numpy().astype(np.int16).T,
        "edge_attr": whole.arrays["edge_attr"].numpy().astype(np.uint8)[:, 0],
        "y": whole.arrays["graph_y"].numpy()[:, 0],
        "node_ptr": whole.ptr["node"].numpy(),
        "edge_ptr": whole.ptr["edge"].numpy(),
    }
    np.savez(path, **{**arrays, **changes})


def test_arrays_hold_the_same_as_processed_files(tmp_path):
    graphs = zinc_like(9)
    write_npz(tmp_path / "zinc.npz", graphs)
    save_new(graphs, tmp_path / "train.pt")
    assert_same(read_npz(tmp_path / "zinc.npz"), read_processed(tmp_path / "train.pt"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_ptr": np.arange(10)}, "rows of edges do not fit to 9 graphs"),
        ({"node_ptr": np.zeros(10, np.int64)}, "rows of x do not fit"),
        ({"y": np.zeros(8)}, "8 targets for 9 graphs"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, changes, message):
    write_npz(tmp_path / "zinc.npz", zinc_like(9), **changes)
    with pytest.raises(DataCorrupt, match=message):
        read_npz(tmp_path / "zinc.npz")


def test_official_files_of_zinc_hold_the_same_in_both_forms(data_dir):
    folder = data_dir / "graphs" / "zinc"
    for split in ("val", "test"):
        arrays = read_npz(folder / f"zinc12k_{split}.npz")
        assert_same(read_processed(folder / "pyg_processed" / f"{split}.pt"), arrays)
        assert len(arrays) == 1000


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
@pytest.mark.parametrize("name", ["zinc.npz", "new.pt", "old.pt", "split.pickle"])
def test_truncated_files_are_named(tmp_path, cut, name):
    path = tmp_path / name
    write_npz(tmp_path / "zinc.npz", zinc_like(9))
    save_new(zinc_like(9), tmp_path / "new.pt")
    save_old(zinc_like(9), tmp_path / "old.pt")
    (tmp_path / "split.pickle").write_bytes(pickle.dumps({"train": np.arange(9)}))
    content = path.read_bytes()
    path.write_bytes(content[: cut if isinstance(cut, int) else int(cut * len(content))])
    read = {".npz": read_npz, ".pt": read_processed, ".pickle": read_pickle}[path.suffix]
    with pytest.raises(DataCorrupt, match=name):
        read(path)


@pytest.mark.parametrize(
    "content", [torch.zeros(3), {"x": torch.zeros(3)}, ({"x": torch.zeros(3, 1)}, {})]
)
def test_other_files_of_torch_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "train.pt")
    with pytest.raises(DataCorrupt, match=r"train\.pt: (not a processed file|without)"):
        read_processed(tmp_path / "train.pt")


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("inside", ["bare", "split", "state", "array"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, inside):
    trap = Trap(f"touch {tmp_path / 'ran'}")
    content = {
        "bare": trap,
        "split": {"train": np.arange(3), "val": trap},
        "state": (Data(x=torch.zeros(1, 1), name=trap), {}),
        "array": {"train": np.array([trap], dtype=object)},
    }[inside]
    (tmp_path / "split.pickle").write_bytes(pickle.dumps(content))
    torch.save(content, tmp_path / "train.pt")
    for read, name in ((read_pickle, "split.pickle"), (read_torch, "train.pt")):
        with pytest.raises(DataCorrupt, match="which is not allowed"):
            read(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_objects_of_other_packages_become_plain_records(tmp_path):
    save_old(zinc_like(2), tmp_path / "old.pt")
    data, slices = read_torch(tmp_path / "old.pt")
    assert type(data).__module__ == "domains.common.plain_pickle"
    assert set(slices) == {"x", "edge_index", "edge_attr", "y"}


SPLIT = {"train": np.array([4, 0, 2]), "val": np.array([1]), "test": np.array([3])}


@pytest.mark.parametrize("suffix", [".pickle", ".pt"])
def test_split_files_of_both_kinds(tmp_path, suffix):
    path = tmp_path / f"split{suffix}"
    torch.save(SPLIT, path) if suffix == ".pt" else path.write_bytes(pickle.dumps(SPLIT))
    assert {k: v.tolist() for k, v in read_split(path, 5).items()} == {
        k: v.tolist() for k, v in SPLIT.items()
    }


@pytest.mark.parametrize(
    ("changes", "total", "message"),
    [
        ({}, 6, "do not cover all 6"),
        ({"val": np.array([0])}, 5, "overlap"),
        ({"val": np.array([9])}, 5, "overlap or do not cover"),
        ({"val": "abc"}, 5, "without numbers for train, val, test"),
    ],
)
def test_splits_that_do_not_partition_the_graphs_are_refused(tmp_path, changes, total, message):
    (tmp_path / "split.pickle").write_bytes(pickle.dumps({**SPLIT, **changes}))
    with pytest.raises(DataCorrupt, match=message):
        read_split(tmp_path / "split.pickle", total)


def test_official_split_of_the_peptides(data_dir):
    path = data_dir / "graphs/peptides-functional/splits_random_stratified_peptide.pickle"
    sizes = {name: len(rows) for name, rows in read_split(path, 15_535).items()}
    assert sizes == {"train": 10_873, "val": 2_331, "test": 2_331}
