"""Preparation: checks, encodings, and a cache that survives crashes, damage and company."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from domains.common.files import cache_dir
from domains.common.prepared import MANIFEST
from domains.contract import DataCorrupt, DataUnavailable
from domains.graph import prepare
from domains.graph.encodings import random_walk_returns, smallest_eigenpairs
from domains.graph.prepare import prepared_set
from domains.graph.store import SPLITS

from .graphs import MINI, dataset, mini, packed, zinc_like
from .test_readers import save_new, write_npz

COUNTS = {split: MINI[split] for split in SPLITS}


def zinc_graphs(split: str):
    return zinc_like(COUNTS[split], seed=SPLITS.index(split), sizes=(2, 9))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """DATA_DIR with a few graphs in the form of ZINC; CACHE_DIR beside it."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "zinc"
    folder.mkdir(parents=True)
    for split in SPLITS:
        write_npz(folder / f"zinc12k_{split}.npz", zinc_graphs(split))
    return folder


def cached() -> list[Path]:
    return sorted(path for path in (cache_dir() / "graph").iterdir() if path.is_dir())


def never(*args, **kwargs):
    raise AssertionError("prepared again")


@pytest.mark.parametrize("chunk", [2, 1024])
def test_prepared_graphs_are_those_of_the_source_with_their_encodings(folder, monkeypatch, chunk):
    monkeypatch.setattr(prepare, "CHUNK", chunk)
    result = prepared_set(mini(lap_pairs=3))
    assert result.kind == "real"
    for split in SPLITS:
        graphs = packed(zinc_graphs(split))
        found = result.splits[split]
        assert len(found) == COUNTS[split]
        for name, array in graphs.arrays.items():
            assert torch.equal(found.arrays[name].to(array.dtype), array), name
        torch.testing.assert_close(found.arrays["rwse"], random_walk_returns(graphs, 4))
        vectors, values = smallest_eigenpairs(graphs, 3, undirected=False)
        expected = {"lap_vectors": vectors, "lap_values": values}
        for name, array in expected.items():
            torch.testing.assert_close(found.arrays[name], array, equal_nan=True)
        kinds = {name: array.dtype for name, array in found.arrays.items()}
        assert kinds["x"] == kinds["edge_attr"] == torch.uint8
        assert kinds["edges"] == torch.int16


def test_second_time_comes_from_the_cache(folder, monkeypatch):
    first = prepared_set(mini())
    monkeypatch.setattr(prepare, "_prepare", never)
    second = prepared_set(mini())
    assert second.fingerprint == first.fingerprint
    assert (second.kind, second.source, second.notes) == (first.kind, first.source, first.notes)
    for name, array in first.splits["train"].arrays.items():
        assert torch.equal(second.splits["train"].arrays[name], array)


def test_fingerprint_follows_the_content_and_not_its_form(folder, tmp_path):
    """Encodings, too, are left out: their last bits depend on the machine."""
    first = prepared_set(mini()).fingerprint
    assert prepared_set(mini(rwse_steps=0, lap_pairs=2)).fingerprint == first
    processed = tmp_path / "data" / "ZINC" / "subset" / "processed"
    processed.mkdir(parents=True)
    for split in SPLITS:
        save_new(zinc_graphs(split), processed / f"{split}.pt")
    again = prepared_set(mini())
    assert "ZINC/subset" in again.source
    assert again.fingerprint == first
    other = zinc_graphs("test")
    other[0].y += 1.0
    save_new(other, processed / "test.pt")
    assert prepared_set(mini()).fingerprint != first


@pytest.mark.parametrize("option", [{"rwse_steps": 5}, {"lap_pairs": 2}, {"version": "2"}])
def test_other_preparation_goes_to_a_folder_of_its_own(folder, option):
    prepared_set(mini())
    prepared_set(mini(**option))
    assert len(cached()) == 2


def test_changed_file_is_not_taken_from_the_cache(folder):
    before = prepared_set(mini()).fingerprint
    write_npz(folder / "zinc12k_val.npz", zinc_like(3, seed=9, sizes=(2, 9)))
    assert prepared_set(mini()).fingerprint != before


def test_another_expectation_is_checked_although_the_set_is_in_the_cache(folder):
    """Symptom: a wrong number of classes went unnoticed after the first run."""
    prepared_set(mini())
    with pytest.raises(DataCorrupt, match="column 0 has values"):
        prepared_set(mini(node_types=5))


def damage_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: damage_bit(f / "train.rwse.npy"),
        lambda f: os.truncate(f / "val.edges.npy", 130),
        lambda f: (f / "test.x.npy").unlink(),
        lambda f: (f / MANIFEST).unlink(),
        lambda f: (f / MANIFEST).write_text("{"),
        lambda f: (f / MANIFEST).write_text("[]"),
        lambda f: (f / MANIFEST).write_text("{}"),
    ],
)
def test_a_damaged_cache_is_noticed_and_built_again(folder, damage, caplog):
    before = prepared_set(mini())
    expected = {k: a.clone() for k, a in before.splits["train"].arrays.items()}
    [found] = cached()
    damage(found)
    again = prepared_set(mini())
    assert "is damaged" in caplog.text
    for name, array in expected.items():
        assert torch.equal(again.splits["train"].arrays[name], array)
    assert cached() == [found]


def test_failed_preparation_leaves_nothing(folder, monkeypatch):
    monkeypatch.setattr(prepare, "random_walk_returns", never)
    with pytest.raises(AssertionError):
        prepared_set(mini())
    assert cached() == []


def test_a_full_disk_is_named_and_leaves_nothing(folder, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare, "new_array", full)
    with pytest.raises(DataUnavailable, match=r"neither in CACHE_DIR, now .*No space left.* nor"):
        prepared_set(mini())
    assert cached() == []


def test_arrays_are_mapped_and_not_read(folder):
    """Several workers on one machine share the memory of a large set."""
    found = prepared_set(mini()).splits["train"].arrays["rwse"]
    [place] = cached()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(place / "train.rwse.npy") in maps.read()
    assert found.shape[1] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": 5}, r"6 graphs in the train split, but dataset.train is 5\. Splits of publis"),
        ({"node_types": 20}, r"zinc12k.*, train: node features: column 0 has values from \d+ to 2"),
        ({"edge_types": 3}, "edge features: column 0 has values from 1 to 3, expected are 0 to 2"),
        ({"targets": 2}, "1 targets a graph, expected 2"),
        ({"mean_nodes": 23.2}, r"[345]\.\d\d nodes a graph, published are 23.2: these are not"),
        ({"mean_edges": 49.8}, "edges a graph, published are 49.8"),
        ({"features": "float", "node_width": 2, "edge_width": 1}, "1 node features, expected 2"),
        ({"features": "float", "node_width": 1}, "edge features that are not expected"),
        ({"features": "atom"}, "1 node features, expected 9"),
        (
            {"task": "node_classification", "metric": "accuracy", "classes": 2},
            "no targets for task node_classification",
        ),
    ],
)
def test_graphs_that_are_not_what_the_configuration_says_are_refused(folder, change, message):
    with pytest.raises(DataCorrupt, match=message):
        prepared_set(mini(**change))
    assert cached() == []


def rewrite(folder: Path, **change) -> None:
    write_npz(folder / "zinc12k_test.npz", zinc_graphs("test"), **change)


def test_edges_that_leave_their_graph_are_refused(folder):
    edges = packed(zinc_graphs("test")).arrays["edges"].numpy().T.copy()
    edges[1, -1] = 20
    rewrite(folder, edge_index=edges)
    with pytest.raises(DataCorrupt, match="test: edges that name a node outside of their graph"):
        prepared_set(mini())


def test_targets_that_are_not_numbers_are_refused(folder):
    rewrite(folder, y=np.array([1.0, np.nan, 2.0], np.float32))
    with pytest.raises(DataCorrupt, match="test: targets that are not finite"):
        prepared_set(mini())


def labelled(folder: Path, y: np.ndarray, **options):
    """The small set with classes for its training graphs."""
    for split in SPLITS:
        graphs = zinc_graphs(split)
        values = y if split == "train" else np.zeros(len(graphs), y.dtype)
        write_npz(folder / f"zinc12k_{split}.npz", graphs, y=values)
    return mini(task="multilabel", metric="ap", **options)


def test_labels_other_than_yes_no_and_unknown_are_refused(folder):
    y = np.array([0, 1, np.nan, 0, 1, 1], np.float32)
    assert prepared_set(labelled(folder, y)).kind == "real"
    with pytest.raises(DataCorrupt, match="train: labels other than 0, 1 and NaN"):
        prepared_set(labelled(folder, y + 0.5))


CLASSES = {"task": "node_classification", "metric": "accuracy", "targets": None, "classes": 3}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], None),
        ([0, 1, 3], "labels from 0 to 3, expected are 0 to 2"),
        ([0, 1, 1], "no training label of class 2"),
        ([0.0, 1.0, 2.0], "expected integers in a row"),
    ],
)
def test_every_class_and_no_other_occurs(folder, tmp_path, labels, message):
    processed = tmp_path / "data" / "ZINC" / "subset" / "processed"
    processed.mkdir(parents=True)
    for split in SPLITS:
        graphs = zinc_graphs(split)
        for graph in graphs:
            graph.y = torch.tensor(labels * 3)[: len(graph.x)]
        save_new(graphs, processed / f"{split}.pt")
    if message is None:
        found = prepared_set(mini(**CLASSES)).splits["train"]
        assert found.arrays["node_y"].dtype == torch.uint8
        return
    with pytest.raises(DataCorrupt, match=message):
        prepared_set(mini(**CLASSES))


def test_other_content_than_the_known_makes_a_sample(folder):
    unknown = prepared_set(mini())
    [found] = cached()
    digests = json.loads((found / MANIFEST).read_text())["facts"]["digests"]
    assert unknown.notes == (
        "no checksum is known; numbers of graphs, nodes and edges are the published",
    )
    known = {"val": digests["val"], "test": digests["test"]}
    same = prepared_set(mini(content=known))
    assert (same.kind, same.notes) == ("real", ())
    other = prepared_set(mini(content={**known, "val": "00"}))
    assert other.kind == "sample"
    assert other.notes == ("not the published content: val split",)


def test_a_table_with_another_checksum_makes_a_sample(folder):
    found = prepared_set(mini(md5={"zinc12k_val.npz": "00"}))
    assert found.kind == "sample"
    assert found.notes == ("not the published content: zinc12k_val.npz",)


def test_a_reduced_pattern(tmp_path, monkeypatch):
    monkeypatch.delenv("DATA_DIR", raising=False)
    config = dataset("pattern", train=20, val=5, test=5)
    result = prepared_set(config)
    assert result.kind == "regenerated"
    assert {split: len(graphs) for split, graphs in result.splits.items()} == {
        "train": 20, "val": 5, "test": 5,
    }  # fmt: skip
    assert result.splits["train"].arrays["lap_vectors"].shape[1] == 16
    other = prepared_set(dataset("pattern", train=20, val=5, test=5, generator_seed=1))
    assert other.fingerprint != result.fingerprint


def test_a_single_pair_is_refused():
    """Symptom: LapPE carried nothing, because only the constant eigenvector was kept."""
    with pytest.raises(ValueError, match="lap_pairs=1 keeps nothing but the constant eigenvector"):
        mini(lap_pairs=1)
