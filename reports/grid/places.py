"""Where each run of a grid study stands: read from its configuration, written into its label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from reports.labels import ATTENTION, differing_keys, flatten, label
from reports.rows import GridPlace, GridSpec, Problem, Row

Identity = tuple[str, str, str, str]
"""Domain, data set, attention and hash."""
ConfigOf = Callable[[Row], Mapping[str, Any]]

USUAL: Mapping[str, str] = {"recipe.qk_lr_ratio": "1"}
"""Settings that go without saying, and name a study wherever they have another value."""
DIGITS = 6
"""Significant ones of values of grid runs, so that their CSV file is small and exact at once."""


def place(rows: Iterable[Row], config_of: ConfigOf) -> tuple[list[Row], list[Problem]]:
    """Rows with their place in the grid, and the runs whose place cannot be told.

    A result names its grid. Runs without a result have that of their domain.
    """
    rows = list(rows)
    specs = {row.domain: row.grid.spec for row in rows if row.grid}
    flat: dict[Identity, dict[str, str]] = {}
    placed, problems = [], []
    for row in rows:
        spec = row.grid.spec if row.grid else specs.get(row.domain)
        if spec is None:
            placed.append(row)
            continue
        if _identity(row) not in flat:
            flat[_identity(row)] = flatten(config_of(row))
        config = flat[_identity(row)]
        absent = [key for key in spec.keys if key not in config]
        if absent:
            message = f"config.yaml does not tell {', '.join(absent)}: no place in the grid"
            problems.append(Problem(row.path, message))
        else:
            placed.append(_placed(row, spec, config))
    return placed, problems


def _placed(row: Row, spec: GridSpec, config: Mapping[str, str]) -> Row:
    values = tuple(neat(config[key]) for key in spec.keys)
    return replace(
        row,
        grid=GridPlace(spec, values, row.grid.together if row.grid else None),
        metrics={name: rounded(value) for name, value in row.metrics.items()},
        seconds=None if row.seconds is None else rounded(row.seconds),
    )


def label_studies(rows: list[Row], config_of: ConfigOf) -> list[Row]:
    """Rows with `variant` and `setting`; keys that span the grid are part of neither.

    What differs under one protocol is named under every protocol of the domain, so that studies
    that differ in the protocol alone have the same setting.
    """
    flat: dict[Identity, dict[str, str]] = {}
    tables: dict[tuple[Any, ...], set[Identity]] = defaultdict(set)
    for row in rows:
        assert row.grid is not None
        identity = _identity(row)
        if identity not in flat:
            config = flatten(config_of(row))
            flat[identity] = {k: v for k, v in config.items() if k not in row.grid.spec.keys}
        under = (row.protocol, row.protocol_version, row.recipe, row.budget, row.kind)
        tables[(row.domain, row.dataset, *under)].add(identity)
    differing: dict[str, set[str]] = defaultdict(set)
    for (domain, *_), members in tables.items():
        keys = differing_keys(flat[identity] for identity in members)
        differing[domain] |= {key for key in keys if not key.startswith("attention.")}
        for attention in {identity[2] for identity in members}:
            own = differing_keys(flat[identity] for identity in members if identity[2] == attention)
            differing[domain] |= {key for key in own if key.startswith(ATTENTION)}
    for identity, config in flat.items():
        odd = {key for key, usual in USUAL.items() if neat(config.get(key, usual)) != usual}
        differing[identity[0]] |= odd
    labels = {identity: label(config, differing[identity[0]]) for identity, config in flat.items()}
    labelled = []
    for row in rows:
        short, options, setting = labels[_identity(row)]
        parts = (part.partition("=") for part in setting.split(", ") if part)
        setting = ", ".join(f"{k}={neat(v)}" for k, _, v in parts if neat(v) != USUAL.get(k))
        variant = f"{row.attention} ({short})" if short else row.attention
        labelled.append(replace(row, variant=variant, options=options, setting=setting))
    return labelled


def _identity(row: Row) -> Identity:
    return (row.domain, row.dataset, row.attention, row.hash)


def rounded(value: float) -> float:
    """To the digits that `grid_runs.csv` keeps."""
    return float(f"{value:.{DIGITS}g}")


def neat(text: str) -> str:
    """One spelling of a number (`0` and `0.0`, `5e-4` and `0.0005`); other text as it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def in_order(texts: Iterable[str]) -> list[str]:
    """Distinct texts, numbers by value and before words."""
    return sorted(set(texts), key=order)


def order(text: str) -> tuple[int, float, str]:
    """Sort key of a value."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
