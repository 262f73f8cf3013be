"""`results.csv` and `runs.csv`: everything that tables are made of, and the way back from them.

`runs.csv` has one row a run, finished or not; `results.csv` one row a run and metric. Together
they replace the store for everything except curves. Runs of grid studies stand in files of their
own (see :mod:`reports.grid.export`).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from reports.frame import Frame
from reports.grid.export import STUDIES, read_grid
from reports.grid.probes import Probes
from reports.rows import MetricInfo, ReportError, Row, check_unique
from reports.table import Value, to_csv

_KEY = ("domain", "dataset", "attention", "hash", "seed")
_NOTE_SEPARATOR = " | "
_RUN_FIELDS = tuple(f.name for f in fields(Row) if f.name not in ("metrics", "info", "grid"))
_INTEGERS = frozenset(
    {
        "seed", "protocol_version", "selected_epoch", "test_size", "parameters_total",
        "parameters_attention", "peak_memory_bytes", "threads",
    }
)  # fmt: skip
_FLOATS = frozenset({"seconds", "seconds_per_step"})
_PLACE = ("protocol", "recipe", "budget", "kind")


def runs_csv(rows: Sequence[Row]) -> str:
    """One line a run."""
    records = []
    for row in rows:
        record: dict[str, Value] = {name: getattr(row, name) for name in _RUN_FIELDS}
        record["notes"] = _NOTE_SEPARATOR.join(row.notes)
        info = row.info.get(row.primary)
        record["primary_direction"] = _direction(info)
        record["primary_unit"] = info.unit if info else ""
        record["primary_note"] = info.note if info else ""
        records.append(record)
    return to_csv(records)


def results_csv(rows: Sequence[Row]) -> str:
    """One line a finished run and metric."""
    records = []
    for row in rows:
        for name, value in row.metrics.items():
            info = row.info.get(name, MetricInfo(None))
            record: dict[str, Value] = {field: getattr(row, field) for field in (*_KEY, *_PLACE)}
            record |= {
                "metric": name,
                "value": value,
                "unit": info.unit,
                "direction": _direction(info),
                "note": info.note,
            }
            records.append(record)
    return to_csv(records)


def read_csv(folder: Path) -> Frame:
    """Rows from the files of a report in `folder`: of its tables, of its grid studies, or both.

    Raises:
        ReportError: a file is missing or not in the form that a report writes.
    """
    rows: list[Row] = []
    probes = Probes()
    has_studies = (folder / STUDIES).exists()
    try:
        if not has_studies or (folder / "runs.csv").exists():
            rows += _read_tables(folder)
        if has_studies:
            studied, probes = read_grid(folder, _records)
            rows += studied
    except (KeyError, ValueError) as error:
        message = f"the CSV files in {folder} are not those of a report: {error!r}"
        raise ReportError(message) from error
    check_unique(rows)
    return Frame(tuple(rows), probes=probes)


def _read_tables(folder: Path) -> list[Row]:
    metrics: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    info: dict[tuple[str, ...], dict[str, MetricInfo]] = defaultdict(dict)
    for record in _records(folder / "results.csv"):
        key = tuple(record[name] for name in _KEY)
        metrics[key][record["metric"]] = float(record["value"])
        info[key][record["metric"]] = _info(record, "")
    rows = []
    for record in _records(folder / "runs.csv"):
        key = tuple(record[name] for name in _KEY)
        values: dict[str, Any] = {name: _parse(name, record[name]) for name in _RUN_FIELDS}
        if record["primary"]:
            info[key].setdefault(record["primary"], _info(record, "primary_"))
        rows.append(Row(**values, metrics=metrics.get(key, {}), info=info.get(key, {})))
    return rows


def _records(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError as error:
        raise ReportError(f"{path} is missing") from error


def _direction(info: MetricInfo | None) -> str:
    if info is None or info.higher_is_better is None:
        return ""
    return "max" if info.higher_is_better else "min"


def _info(record: dict[str, str], prefix: str) -> MetricInfo:
    direction = {"max": True, "min": False, "": None}[record[f"{prefix}direction"]]
    return MetricInfo(direction, record[f"{prefix}unit"], record[f"{prefix}note"])


def _parse(name: str, text: str) -> Any:
    if name == "notes":
        return tuple(text.split(_NOTE_SEPARATOR)) if text else ()
    if name in _INTEGERS:
        return int(text) if text else None
    if name in _FLOATS:
        return float(text) if text else None
    return text
