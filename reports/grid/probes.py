"""What goes on inside the models of a grid: readings at the end, and their course by outcome.

Read from the store's `metrics.jsonl`, where the values of an epoch are those at its end and
`initial/...` in the first epoch are those before training. Epochs are counted from 0 = untrained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.store import RunKey, Store
from reports.grid.places import rounded
from reports.grid.studies import StudyKey, outcome_of, study_key
from reports.rows import Row

KEY_NORMS: Mapping[str, str] = {
    "key_norm_biased": "biased answer",
    "key_norm_unbiased": "unbiased answer",
    "key_norm_other": "other tokens",
}
ATTENTION: Mapping[str, str] = {
    "attention_biased": "biased answer",
    "attention_unbiased": "unbiased answer",
    "attention_other": "other tokens",
}
QUERY_NORM = "query_norm"
PROBES = (*KEY_NORMS, QUERY_NORM, *ATTENTION)
"""Names of the readings, without `probe/` and `initial/`."""

MAX_EPOCHS = 26
"""Points of a curve that are kept: every second epoch of fifty."""
SPREAD = (10.0, 90.0)
"""Percentiles of the runs between which a band is drawn."""

RunId = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Curve:
    """Course of one reading over training, over all runs of a variant with one outcome.

    Attributes:
        mean: by epoch.
        low: lower percentile.
        high: upper percentile.
    """

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Course:
    """Curves of all readings of a variant's runs with one outcome.

    Attributes:
        runs: behind them.
        epochs: that were kept; 0 is before training.
        curves: by name of the reading.
    """

    runs: int
    epochs: tuple[int, ...]
    curves: Mapping[str, Curve]


CourseKey = tuple[StudyKey, str, str]
"""Study, variant, outcome."""


@dataclass(frozen=True)
class Probes:
    """All readings of a report.

    Attributes:
        final: readings after the last epoch, by run.
        courses: by study, variant and outcome.
    """

    final: Mapping[RunId, Mapping[str, float]] = field(default_factory=dict)
    courses: Mapping[CourseKey, Course] = field(default_factory=dict)


def read(root: Path, rows: Iterable[Row]) -> Probes:
    """Readings of every finished grid run among `rows`; runs without any are left aside."""
    store = Store(root)
    final: dict[RunId, Mapping[str, float]] = {}
    series: dict[CourseKey, list[NDArray[np.float64]]] = defaultdict(list)
    for row in rows:
        outcome = outcome_of(row)
        if not row.done or outcome is None:
            continue
        records: Sequence[Mapping[str, Any]] = ()
        with suppress(OSError):
            records = store.run(RunKey(*row.run_key)).metrics()
        table = _table(records)
        if table is None:
            continue
        last = zip(PROBES, table[-1].tolist(), strict=True)
        final[row.run_key] = {name: rounded(v) for name, v in last if np.isfinite(v)}
        series[(study_key(row), row.variant, outcome)].append(table)
    return Probes(final, {key: _course(tables) for key, tables in series.items()})


def _table(records: Sequence[Mapping[str, Any]]) -> NDArray[np.float64] | None:
    """Readings: [epochs + 1, probes]; nan where one was not taken."""
    lines: list[list[float]] = []
    for record in records:
        values = record.get("values") or {}
        if not lines and f"initial/{PROBES[0]}" in values:
            lines.append(_line(values, "initial/"))
        if f"probe/{PROBES[0]}" in values:
            if not lines:
                lines.append([np.nan] * len(PROBES))
            lines.append(_line(values, "probe/"))
    return np.array(lines) if len(lines) > 1 else None


def _line(values: Mapping[str, Any], prefix: str) -> list[float]:
    found = (values.get(prefix + name) for name in PROBES)
    return [float(v) if isinstance(v, int | float) else np.nan for v in found]


def _course(tables: Sequence[NDArray[np.float64]]) -> Course:
    length = max(map(len, tables))
    stacked = np.full((len(tables), length, len(PROBES)), np.nan)
    for filled, table in zip(stacked, tables, strict=True):
        filled[: len(table)] = table
    # An epoch that was not read in any run (no reading before training) has no point.
    kept = np.unique(np.linspace(0, length - 1, min(length, MAX_EPOCHS)).round().astype(int))
    kept = kept[np.isfinite(stacked[:, kept]).any((0, 2))]
    stacked = stacked[:, kept]
    curves = {}
    for index, name in enumerate(PROBES):
        values = stacked[:, :, index]
        if np.isfinite(values).any(0).all():
            low, high = np.nanpercentile(values, SPREAD, axis=0)
            mean = np.nanmean(values, axis=0)
            curves[name] = Curve(*(tuple(map(_short, v.tolist())) for v in (mean, low, high)))
    return Course(len(tables), tuple(kept.tolist()), curves)


def _short(value: float) -> float:
    """To the digits that `grid_curves.csv` keeps."""
    return float(f"{value:.4g}")
