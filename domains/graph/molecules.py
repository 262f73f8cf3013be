"""Molecules as graphs: SMILES through RDKit, features as OGB codes them.

Atoms carry nine integers and bonds three. Source of the vocabulary: snap-stanford/ogb at release
1.3.6, `ogb/utils/features.py` and `ogb/utils/mol.py` (MIT): facts of it, written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from domains.contract import DataCorrupt, DataUnavailable
from domains.graph.store import PackedGraphs, pack

ATOM_TYPES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Values of each atom feature: atomic number, chirality, degree, charge, hydrogens, radical
electrons, hybridisation, aromatic, in a ring."""

BOND_TYPES = (5, 6, 2)
"""Values of each bond feature: type, stereo, conjugated."""

CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
HYBRIDISATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")

INSTALL = "`make setup` brings it, or `pip install rdkit`"


def _rdkit() -> Any:
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise DataUnavailable(
            f"graphs are made from SMILES by RDKit, which is not installed: {INSTALL}"
        ) from error
    RDLogger.DisableLog("rdApp.*")
    return Chem


def molecular_graphs(smiles: Iterable[str], where: str) -> PackedGraphs:
    """Heavy atoms and bonds of molecules, in the order of the SMILES; bonds in both directions.

    Args:
        smiles: one a molecule.
        where: file they come from, for messages.

    Returns:
        Graphs with `x` (N, 9), `edges` and `edge_attr` (E, 3) of uint8 and int32.

    Raises:
        DataUnavailable: RDKit is not installed.
        DataCorrupt: a SMILES that RDKit does not read.
    """
    chem = _rdkit()
    atom_row, bond_row = _features(chem)
    graphs = []
    for number, text in enumerate(smiles):
        molecule = chem.MolFromSmiles(text)
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise DataCorrupt(f"{where}: molecule {number} is no SMILES: {text[:60]!r}")
        atoms = [atom_row(atom) for atom in molecule.GetAtoms()]
        ends: list[tuple[int, int]] = []
        kinds: list[tuple[int, ...]] = []
        for bond in molecule.GetBonds():
            one, other = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            ends += [(one, other), (other, one)]
            kinds += [bond_row(bond)] * 2
        graphs.append(
            {
                "x": torch.tensor(atoms, dtype=torch.uint8),
                "edges": _rows(ends, 2, torch.int32),
                "edge_attr": _rows(kinds, len(BOND_TYPES), torch.uint8),
            }
        )
    return pack(graphs)


def _rows(rows: list[Any], width: int, dtype: torch.dtype) -> Tensor:
    """(R, width); also without any row."""
    return torch.tensor(rows, dtype=dtype).reshape(-1, width)


def _features(
    chem: Any,
) -> tuple[Callable[[Any], tuple[int, ...]], Callable[[Any], tuple[int, ...]]]:
    """Functions that code an atom and a bond. What a vocabulary lacks takes its last code."""
    codes = {
        names: {
            kind.values[value]: names.index(str(kind.values[value]))
            for value in kind.values
            if str(kind.values[value]) in names
        }
        for names, kind in (
            (CHIRALITY, chem.ChiralType),
            (HYBRIDISATION, chem.HybridizationType),
            (BONDS, chem.BondType),
            (STEREO, chem.BondStereo),
        )
    }
    chirality, hybridisation = codes[CHIRALITY], codes[HYBRIDISATION]
    bonds, stereo = codes[BONDS], codes[STEREO]

    def atom_row(atom: Any) -> tuple[int, ...]:
        return (
            _code(atom.GetAtomicNum(), 1, 118),
            chirality.get(atom.GetChiralTag(), len(CHIRALITY)),
            _code(atom.GetTotalDegree(), 0, 10),
            _code(atom.GetFormalCharge(), -5, 5),
            _code(atom.GetTotalNumHs(), 0, 8),
            _code(atom.GetNumRadicalElectrons(), 0, 4),
            hybridisation.get(atom.GetHybridization(), len(HYBRIDISATION)),
            int(atom.GetIsAromatic()),
            int(atom.IsInRing()),
        )

    def bond_row(bond: Any) -> tuple[int, ...]:
        # Stereo has no code for what it lacks: OGB fails there, and so do we.
        return (
            bonds.get(bond.GetBondType(), len(BONDS)),
            stereo[bond.GetStereo()],
            int(bond.GetIsConjugated()),
        )

    return atom_row, bond_row


def _code(value: int, first: int, last: int) -> int:
    """Place of a number in first, ..., last, 'anything else'."""
    return value - first if first <= value <= last else last - first + 1
