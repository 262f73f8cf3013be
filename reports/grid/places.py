"""Where each run of a grid study stands: read from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from reports.labels import neat
from reports.rows import GridPlace, GridSpec, Problem, Row

DIGITS = 6
"""Significant ones of values of grid runs, so that their CSV file is small and exact at once."""


def place(
    rows: Iterable[Row], config_of: Callable[[Row], Mapping[str, Any]]
) -> tuple[list[Row], list[Problem]]:
    """Rows with their place in the grid, and the runs whose place cannot be told.

    A result names its grid. Runs without a result have that of their domain.
    """
    rows = list(rows)
    specs = {row.domain: row.grid.spec for row in rows if row.grid}
    placed, problems = [], []
    for row in rows:
        spec = row.grid.spec if row.grid else specs.get(row.domain)
        if spec is None:
            placed.append(row)
            continue
        config = config_of(row)
        values = [_value(config, key) for key in spec.keys]
        absent = [key for key, value in zip(spec.keys, values, strict=True) if value is None]
        if absent:
            message = f"config.yaml does not tell {', '.join(absent)}: no place in the grid"
            problems.append(Problem(row.path, message))
        else:
            placed.append(_placed(row, spec, tuple(neat(str(value)) for value in values)))
    return placed, problems


def _value(config: Any, key: str) -> Any:
    """What a configuration has at a dotted key, None without it."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _placed(row: Row, spec: GridSpec, values: tuple[str, ...]) -> Row:
    return replace(
        row,
        grid=GridPlace(spec, values, row.grid.together if row.grid else None),
        metrics={name: rounded(value) for name, value in row.metrics.items()},
        seconds=None if row.seconds is None else rounded(row.seconds),
    )


def rounded(value: float) -> float:
    """To the digits that `grid_runs.csv` keeps."""
    return float(f"{value:.{DIGITS}g}")


def in_order(texts: Iterable[str]) -> list[str]:
    """Distinct texts, numbers by value and before words."""
    return sorted(set(texts), key=order)


def order(text: str) -> tuple[int, float, str]:
    """Sort key of a value."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
