"""SMILES to graphs in OGB's code, and the Peptides tables."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from domains.contract import DataCorrupt, DataUnavailable
from domains.graph import peptides
from domains.graph.molecules import ATOM_TYPES, BOND_TYPES, molecular_graphs
from domains.graph.peptides import STRUCT_TARGETS, read_functional, read_structural

pytest.importorskip("rdkit")


def test_the_example_of_ogb():
    """`ogb/utils/features.py` gives these two rows as its own check."""
    graphs = molecular_graphs(["Cl[C@H](/C=C/C)Br"], "example")
    assert graphs.arrays["x"][1].tolist() == [5, 2, 4, 5, 1, 0, 2, 0, 0]
    edges = graphs.arrays["edges"].tolist()
    double = graphs.arrays["edge_attr"][edges.index([2, 3])].tolist()
    assert double == [1, 2, 0]


def test_bonds_by_hand():
    """Acetonitrile and benzene: every bond in both directions, one behind the other."""
    graphs = molecular_graphs(["CC#N", "c1ccccc1"], "example")
    assert graphs.ptr["node"].tolist() == [0, 3, 9]
    assert graphs.ptr["edge"].tolist() == [0, 4, 16]
    assert graphs.arrays["edges"][:4].tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graphs.arrays["edge_attr"][:4].tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert set(map(tuple, graphs.arrays["edge_attr"][4:].tolist())) == {(3, 0, 1)}
    # Carbon, achiral, degree 3, no charge, one hydrogen, no radical, SP2, aromatic, in a ring.
    assert graphs.arrays["x"][3].tolist() == [5, 0, 3, 5, 1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("smiles", "atom", "expected"),
    [
        ("[NH3+]C", 0, [6, 0, 4, 6, 3, 0, 2, 0, 0]),
        ("[O-]C=O", 0, [7, 0, 1, 4, 0, 0, 1, 0, 0]),
        ("[CH2]C", 0, [5, 0, 3, 5, 2, 1, 2, 0, 0]),
        ("F[P@SP1](Cl)(Br)I", 1, [14, 4, 4, 5, 0, 1, 5, 0, 0]),  # square planar has no code
        ("*C", 0, [118, 0, 1, 5, 0, 0, 5, 0, 0]),  # nor has an atom of no element
    ],
)
def test_codes_of_unusual_atoms(smiles, atom, expected):
    found = molecular_graphs([smiles], "example").arrays["x"][atom].tolist()
    assert found == expected
    assert all(code < size for code, size in zip(found, ATOM_TYPES, strict=True))


def test_an_atom_alone_has_no_edges():
    graphs = molecular_graphs(["C", "O"], "example")
    assert graphs.arrays["edges"].shape == (0, 2)
    assert graphs.arrays["edge_attr"].shape == (0, len(BOND_TYPES))


def test_a_text_that_is_no_molecule_is_named():
    with pytest.raises(DataCorrupt, match=r"table: molecule 1 is no SMILES: 'C1CC'"):
        molecular_graphs(["CC", "C1CC"], "table")


def test_missing_rdkit_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(DataUnavailable, match="RDKit, which is not installed: `make setup`"):
        molecular_graphs(["CC"], "table")


def test_features_of_zinc_agree_with_its_published_graphs(data_dir):
    """Official molecules of the test split: the same atoms and bonds, whatever their order."""
    folder = data_dir / "graphs" / "zinc"
    rows = pd.read_csv(folder / "zinc12k_test.csv")
    graphs = molecular_graphs(rows["smiles"][:300], "zinc12k_test.csv")
    with np.load(folder / "zinc12k_test.npz", allow_pickle=False) as published:
        nodes, edges = np.diff(published["node_ptr"]), np.diff(published["edge_ptr"])
        carbons = [
            int(np.isin(published["x"][a:b], [0, 4, 23, 26]).sum())
            for a, b in zip(published["node_ptr"][:300], published["node_ptr"][1:], strict=False)
        ]
    assert graphs.counts("node").tolist() == nodes[:300].tolist()
    assert graphs.counts("edge").tolist() == edges[:300].tolist()
    carbon = (graphs.arrays["x"][:, 0] == 5).long()
    assert [int(part.sum()) for part in carbon.split(graphs.counts("node").tolist())] == carbons


TABLE = {"smiles": ["CC", "CO", "c1ccccc1"], "labels": ["[0, 1]", "[1, 0]", "[1, 1]"]}


def write_table(path, **changes) -> None:
    pd.DataFrame({**TABLE, **changes}).to_csv(path, index=False)


def test_functional_table(tmp_path):
    write_table(tmp_path / "table.csv.gz")
    graphs = read_functional(tmp_path / "table.csv.gz")
    assert graphs.arrays["graph_y"].tolist() == [[0, 1], [1, 0], [1, 1]]
    assert graphs.counts("node").tolist() == [2, 2, 6]


def targets(scale: float = 1.0) -> dict[str, list[float]]:
    values = scale * np.array([-1.0, 0.0, 1.0])
    return {name: np.roll(values, shift).tolist() for shift, name in enumerate(STRUCT_TARGETS)}


def test_structural_table(tmp_path):
    write_table(tmp_path / "table.csv.gz", **targets())
    found = read_structural(tmp_path / "table.csv.gz").arrays["graph_y"]
    assert found.dtype == torch.float32
    assert found[:, :2].tolist() == [[-1.0, 1.0], [0.0, -1.0], [1.0, 0.0]]


def test_targets_that_are_not_standardised_are_refused(tmp_path):
    """With ddof 0, for example, or as they were measured."""
    write_table(tmp_path / "table.csv.gz", **targets(1.5**0.5))
    with pytest.raises(DataCorrupt, match=r"not standardised; .*structure_normalized"):
        read_structural(tmp_path / "table.csv.gz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["[0, 1]", "[1]", "[1, 1]"]}, "no lists of equal length"),
        ({"labels": ["[0, 1]", "__import__('os')", "[1, 1]"]}, "no lists of equal length"),
        ({"smiles": ["CC", None, "CO"]}, "molecule 1 is no SMILES"),
    ],
)
def test_damaged_tables_are_named(tmp_path, changes, message):
    write_table(tmp_path / "table.csv", **changes)
    with pytest.raises(DataCorrupt, match=rf"table\.csv.*{message}"):
        read_functional(tmp_path / "table.csv")


def test_truncated_and_other_tables_are_named(tmp_path):
    whole = gzip.compress(("smiles,labels\n" + 'CC,"[0, 1]"\n' * 500).encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataCorrupt, match=r"cut\.csv\.gz: no table, or truncated"):
        read_functional(tmp_path / "cut.csv.gz")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataCorrupt, match=r"other\.csv: without the column smiles, labels"):
        read_functional(tmp_path / "other.csv")


def test_peptides(data_dir, monkeypatch):
    """All labels, and the first 400 molecules; the means of all are checked when it is prepared."""
    path = data_dir / "graphs/peptides-functional/raw/peptide_multi_class_dataset.csv.gz"
    monkeypatch.setattr(
        peptides, "molecular_graphs", lambda s, where: molecular_graphs(s[:400], where)
    )
    graphs = read_functional(path)
    assert float(graphs.counts("node").double().mean()) == pytest.approx(148.8, abs=0.05)
    assert graphs.arrays["graph_y"].shape == (15_535, 10)
    assert graphs.arrays["graph_y"].sum(0).tolist() == [
        1378, 545, 995, 969, 9745, 3077, 1662, 2866, 299, 4044,
    ]  # fmt: skip
