"""Example pictures that runs stored: input and truth beside what each variant made of them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.store import RunKey, Store, StoreError
from reports.groups import Cell, Column, Group
from reports.rows import Row

MAX_DATASETS = 5
"""Data sets of a group whose examples are shown."""
MAX_VARIANTS = 9


@dataclass(frozen=True)
class Shot:
    """One picture.

    Attributes:
        name: file name without ending.
        label: what it is: `input`, `truth`, the name of a variant.
        alt: what it shows, for people who do not see it.
        png: the image.
    """

    name: str
    label: str
    alt: str
    png: bytes

    @property
    def address(self) -> str:
        """The image as an address that needs no file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Gallery:
    """Examples of one data set.

    Attributes:
        title: names the data set.
        note: which runs the predictions are of.
        rows: one an example: its name, and its pictures.
    """

    title: str
    note: str
    rows: tuple[tuple[str, tuple[Shot, ...]], ...]


def galleries(root: Path | None, group: Group) -> tuple[Gallery, ...]:
    """Examples of a group's data sets; none without a store, or where no run has any."""
    if root is None:
        return ()
    found = [_gallery(root, group, column) for column in group.columns[:MAX_DATASETS]]
    return tuple(gallery for gallery in found if gallery)


def _gallery(root: Path, group: Group, column: Column) -> Gallery | None:
    store = Store(root)
    drawn: dict[str, tuple[Path, int, list[Mapping[str, Any]]]] = {}
    for variant in group.variants[:MAX_VARIANTS]:
        row = _first(column.cells[variant])
        with suppress(OSError, StoreError):  # a run without pictures is no reason for no report
            if row and (stored := store.run(RunKey(*row.run_key)).examples()):
                drawn[variant] = (root / row.path, row.seed, stored)
    if not drawn:
        return None
    folder, _, examples = next(iter(drawn.values()))
    rows = []
    for number, example in enumerate(examples):
        stem = f"{group.slug}_{column.label}_example{number}"
        shots = [
            _shot(folder / file, stem, label, f"{label} of {example['name']}")
            for label, file in example["given"].items()
        ]
        for variant, (own, _, others) in drawn.items():
            for other in others:
                if other["name"] == example["name"]:
                    alt = f"prediction of {variant} for {example['name']}"
                    shots.append(_shot(own / other["prediction"], stem, variant, alt))
        rows.append((str(example["name"]), tuple(shot for shot in shots if shot)))
    seeds = sorted({seed for _, seed, _ in drawn.values()})
    words = f"seed {seeds[0]}" if len(seeds) == 1 else "the first finished seed of each"
    return Gallery(f"Examples: {column.label}", f"Predictions of {words}.", tuple(rows))


def _first(cell: Cell) -> Row | None:
    return next((row for _, row in sorted(cell.rows.items()) if row.done), None)


def _shot(path: Path, stem: str, label: str, alt: str) -> Shot | None:
    name = re.sub(r"[^\w-]+", "_", f"{stem}_{label}")
    try:
        return Shot(name, label, alt, path.read_bytes())
    except OSError:
        return None


def shots(found: Sequence[Gallery]) -> list[Shot]:
    """Every picture of some galleries."""
    return [shot for gallery in found for _, row in gallery.rows for shot in row]
