"""`grid_studies.csv`, `grid_runs.csv`, `grid_curves.csv`: grid studies, and the way back to them.

`grid_runs.csv` has one line a run: place, outcome, accuracies, readings at the end. What many runs
share stands once, in the line of `grid_studies.csv` with the same `group`. `grid_curves.csv` holds
the course of the readings over training. Together they replace the store for grid studies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.grid.places import DIGITS
from reports.grid.probes import PROBES, Course, CourseKey, Curve, Probes
from reports.grid.studies import Study, StudyKey, outcome_of, study_key
from reports.rows import GridPlace, GridSpec, MetricInfo, Row
from reports.table import Value, to_csv

STUDIES, RUNS, CURVES = "grid_studies.csv", "grid_runs.csv", "grid_curves.csv"

_SEPARATOR = " | "
_TEXTS = (
    "domain", "dataset", "protocol", "model", "recipe", "budget", "kind", "setting", "attention",
    "variant", "options", "fingerprint", "device", "commit", "dirty", "command", "versions",
    "machine", "time",
)  # fmt: skip
_NUMBERS = ("protocol_version", "test_size", "parameters_total", "parameters_attention", "threads")
_SPEC = ("axes", "replicates", "outcomes")
_CURVE_PARTS = ("", ":low", ":high")


def grid_files(studies: Sequence[Study], probes: Probes) -> dict[str, str]:
    """The three files, none without a study."""
    if not studies:
        return {}
    shared: dict[tuple[Value, ...], int] = {}
    runs = [
        _run(study, row, shared, probes.final.get(row.run_key, {}))
        for study in studies
        for row in study.rows
    ]
    names = list(dict.fromkeys(name for record in runs for name in record))
    names.sort(key=lambda name: name in PROBES or name in ("seconds", "together"))
    curves = [
        record
        for study in studies
        for variant in study.variants
        for outcome in study.outcomes
        if (course := probes.courses.get((study.key, variant, outcome)))
        for record in _course(study, variant, outcome, course)
    ]
    columns = ("group", *_TEXTS, *_NUMBERS, *_SPEC, "outcome_notes", "notes")
    groups = [dict(zip(columns, (n, *values), strict=True)) for values, n in shared.items()]
    return {
        STUDIES: to_csv(groups),
        RUNS: to_csv([{name: record.get(name) for name in names} for record in runs], DIGITS),
        CURVES: to_csv(curves, DIGITS),
    }


def _run(
    study: Study, row: Row, shared: dict[tuple[Value, ...], int], final: Mapping[str, float]
) -> dict[str, Value]:
    assert row.grid is not None
    spec = row.grid.spec
    notes = [row.info[name].note if name in row.info else "" for name in spec.outcomes]
    common = (
        *(row.time[:10] if name == "time" else getattr(row, name) for name in _TEXTS),
        *(getattr(row, name) for name in _NUMBERS),
        *(_SEPARATOR.join(getattr(spec, name)) for name in _SPEC),
        _SEPARATOR.join(notes),
        _SEPARATOR.join(row.notes),
    )
    return {
        "study": study.slug,
        "variant": row.variant,
        "group": shared.setdefault(common, len(shared)),
        "hash": row.hash,
        **dict(zip(spec.keys, row.grid.values, strict=True)),
        "seed": row.seed,
        "state": row.state,
        "reason": row.reason,
        "outcome": outcome_of(row) or "",
        **{n: v for n, v in row.metrics.items() if n not in spec.outcomes},
        **final,
        "seconds": row.seconds,
        "together": row.grid.together,
    }


def _course(study: Study, variant: str, outcome: str, course: Course) -> Iterable[dict[str, Value]]:
    for index, epoch in enumerate(course.epochs):
        readings: dict[str, Value] = {}
        for name in PROBES:
            curve = course.curves.get(name)
            values = (curve.mean, curve.low, curve.high) if curve else ()
            for position, part in enumerate(_CURVE_PARTS):
                readings[name + part] = values[position][index] if values else None
        yield {
            "study": study.slug,
            "variant": variant,
            "outcome": outcome,
            "runs": course.runs,
            "epoch": epoch,
            **readings,
        }


def read_grid(
    folder: Path, records_of: Callable[[Path], list[dict[str, str]]]
) -> tuple[list[Row], Probes]:
    """Rows and readings from the three files in `folder`.

    Args:
        folder: of a report.
        records_of: reads one file of CSV.

    Raises:
        KeyError, ValueError: a file is not in the form that this module writes.
    """
    groups = {record["group"]: record for record in records_of(folder / STUDIES)}
    rows: list[Row] = []
    final: dict[tuple[str, str, str, str, int], dict[str, float]] = {}
    keys: dict[str, StudyKey] = {}
    for record in records_of(folder / RUNS):
        row = _row(record, groups[record["group"]])
        rows.append(row)
        keys[record["study"]] = study_key(row)
        readings = {name: float(record[name]) for name in PROBES if record.get(name)}
        if readings:
            final[row.run_key] = readings
    lines: dict[CourseKey, list[Mapping[str, str]]] = {}
    for record in records_of(folder / CURVES):
        key = (keys[record["study"]], record["variant"], record["outcome"])
        lines.setdefault(key, []).append(record)
    return rows, Probes(final, {key: _read_course(found) for key, found in lines.items()})


def _row(record: Mapping[str, str], group: Mapping[str, str]) -> Row:
    columns, line = group["axes"].split(_SEPARATOR)
    spec = GridSpec((columns, line), _split(group["replicates"]), _split(group["outcomes"]))
    place = GridPlace(
        spec, tuple(record[key] for key in spec.keys), int(record["together"] or 0) or None
    )
    taken = {
        "study", "variant", "group", "hash", "seed", "state", "reason", "outcome", "seconds",
        "together", *spec.keys, *PROBES,
    }  # fmt: skip
    metrics = {
        name: float(value)
        for name, value in record.items()
        if value and "/" in name and name not in taken
    }
    info: dict[str, MetricInfo] = {}
    done = record["state"] == "done"
    notes = group["outcome_notes"].split(_SEPARATOR)
    for name, note in zip(spec.outcomes, notes, strict=True):
        if done:
            metrics[name] = 100.0 * (name.rpartition("/")[2] == record["outcome"])
        info[name] = MetricInfo(name == spec.outcomes[0], "%", note)
    values: dict[str, Any] = {name: group[name] for name in _TEXTS}
    values |= {name: int(group[name]) if group[name] else None for name in _NUMBERS}
    path = "/".join((group["domain"], group["dataset"], group["attention"], record["hash"]))
    return Row(
        **values,
        hash=record["hash"],
        seed=int(record["seed"]),
        state=record["state"],
        reason=record["reason"],
        metrics=metrics,
        info=info,
        seconds=float(record["seconds"]) if record["seconds"] else None,
        path=f"{path}/seed={record['seed']}",
        notes=_split(group["notes"]),
        grid=place,
    )


def _read_course(records: Sequence[Mapping[str, str]]) -> Course:
    curves = {
        name: Curve(*(tuple(float(r[name + part]) for r in records) for part in _CURVE_PARTS))
        for name in PROBES
        if records[0][name]
    }
    return Course(int(records[0]["runs"]), tuple(int(r["epoch"]) for r in records), curves)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(_SEPARATOR)) if text else ()
