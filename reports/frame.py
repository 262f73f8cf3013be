"""From a store to one validated list of rows; what cannot be used is listed, never dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.store import Run, RunKey, Store, StoreError
from reports.grid.places import place
from reports.grid.probes import Probes
from reports.labels import label_configurations, label_studies
from reports.rows import (
    GridPlace,
    GridSpec,
    MetricInfo,
    Problem,
    ReportError,
    Row,
    check_unique,
)

Filters = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Frame:
    """All runs that a report is made of.

    Attributes:
        rows: validated runs in a fixed order.
        problems: runs that could not be read.
        root: the store, None if the rows come from CSV files.
        probes: readings of grid runs, where they come from CSV files; a store is read when needed.
    """

    rows: tuple[Row, ...]
    problems: tuple[Problem, ...] = ()
    root: Path | None = field(default=None, compare=False)
    probes: Probes = field(default_factory=Probes, compare=False)

    def filtered(self, filters: Filters) -> Frame:
        """The rows that `filters` allow."""
        return replace(self, rows=tuple(row for row in self.rows if _allowed(row, filters)))


def load(root: Path, filters: Filters | None = None) -> Frame:
    """Read a store.

    Args:
        root: RESULTS_DIR.
        filters: allowed values by name of a row's field; absent names allow everything.

    Raises:
        ReportError: two runs claim the same cell and seed.
    """
    filters = filters or {}
    rows: list[Row] = []
    problems: list[Problem] = []
    runs: dict[tuple[str, str, str, str], Run] = {}
    for run in Store(root).runs():
        key = run.key
        if any(getattr(key, name) not in filters[name] for name in KEY_FILTERS & filters.keys()):
            continue
        runs.setdefault((key.domain, key.dataset, key.attention, key.hash), run)
        try:
            rows.append(_read(run, str(run.path.relative_to(root))))
        except (StoreError, OSError, ReportError) as error:
            path = str(run.path.relative_to(root))
            problems.append(Problem(path, str(error).replace(f"{run.path}/", "")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            path = str(run.path.relative_to(root))
            problems.append(Problem(path, f"result.json is not in the known form: {error!r}"))
    rows = _fill_unfinished(rows)

    def config_of(key: RunKey) -> Mapping[str, Any]:
        try:
            return runs[(key.domain, key.dataset, key.attention, key.hash)].config()
        except (StoreError, OSError):
            return {}

    cached = _cached(config_of)
    rows, misplaced = place(rows, cached)
    problems += misplaced
    ordinary = [row for row in rows if row.grid is None]
    studied = [row for row in rows if row.grid is not None]
    rows = label_configurations(ordinary, cached) + label_studies(studied, cached)
    frame = Frame(tuple(rows), tuple(problems), root).filtered(filters)
    check_unique(frame.rows)
    return frame


SYNTHETIC = "synthetic"
"""The kind of data that the configuration alone tells."""
KEY_FILTERS = frozenset({"domain", "dataset", "attention"})


def _allowed(row: Row, filters: Filters) -> bool:
    return all(getattr(row, name) in allowed for name, allowed in filters.items())


def _cached(
    config_of: Callable[[RunKey], Mapping[str, Any]],
) -> Callable[[Row], Mapping[str, Any]]:
    cache: dict[tuple[str, ...], Mapping[str, Any]] = {}

    def look_up(row: Row) -> Mapping[str, Any]:
        key = (row.domain, row.dataset, row.attention, row.hash)
        if key not in cache:
            cache[key] = config_of(RunKey(*key, row.seed))
        return cache[key]

    return look_up


def _read(run: Run, path: str) -> Row:
    status = run.status()
    key = run.key
    base = Row(
        domain=key.domain,
        dataset=key.dataset,
        attention=key.attention,
        hash=key.hash,
        seed=key.seed,
        state=status["state"],
        reason=str(status.get("reason") or ""),
        time=str(status.get("time") or ""),
        path=path,
    )
    if not base.done:
        return _with_config(base, run)
    result = run.result()
    assert result is not None
    for name in ("domain", "dataset", "attention", "seed"):
        if result[name] != getattr(key, name):
            raise ReportError(
                f"result.json says {name}={result[name]!r} but lies under {getattr(key, name)!r}"
            )
    return _with_provenance(_with_result(base, result), run.provenance())


def _with_config(row: Row, run: Run) -> Row:
    """What the configuration alone tells about a run without a result."""
    config = run.config()
    return replace(
        row,
        model=_name(config.get("model")),
        protocol=_name(config.get("protocol")),
        kind=SYNTHETIC if config.get("synthetic") else row.kind,
        recipe=_name(config.get("recipe")),
        budget=_name(config.get("budget")),
    )


def _name(value: Any) -> str:
    """Groups of the configuration are names, or mappings that hold one."""
    if isinstance(value, Mapping):
        value = value.get("name", "")
    return "" if value is None else str(value)


def _with_result(row: Row, result: Mapping[str, Any]) -> Row:
    primary = result["primary_metric"]
    info = {
        name: MetricInfo(
            bool(entry["higher_is_better"]), entry.get("unit") or "", entry.get("note") or ""
        )
        for name, entry in result["metric_info"].items()
    }
    info.setdefault(
        primary["name"],
        MetricInfo(bool(primary["higher_is_better"]), primary.get("unit") or ""),
    )
    metrics: dict[str, float] = {}
    notes = list(result.get("notes") or ())
    for name, value in result["metrics"].items():
        if isinstance(value, int | float) and math.isfinite(value):
            metrics[name] = float(value)
        else:
            notes.append(f"{name} is {value} and left out")
    if primary["name"] not in metrics:
        raise ReportError(f"result.json has no finite value of its metric {primary['name']}")
    for name, value in (result.get("telemetry") or {}).items():
        if isinstance(value, int | float) and math.isfinite(value):
            metrics[f"telemetry/{name}"] = float(value)
            info[f"telemetry/{name}"] = MetricInfo(None, "nats" if name == "entropy" else "")
    selected = result.get("selected") or {}
    parameters, cost = result.get("parameters") or {}, result.get("cost") or {}
    data = result["data"]
    return replace(
        row,
        model=str(result["model"]),
        protocol=str(result["protocol"]),
        protocol_version=int(result["protocol_version"]),
        recipe=str(result["recipe"]),
        budget=str(result["budget"]),
        kind=str(data["kind"]),
        fingerprint=str(data["fingerprint"]),
        primary=primary["name"],
        metrics=metrics,
        info=info,
        selected_epoch=selected.get("epoch"),
        selection_rule=selected.get("rule") or "",
        test_size=(data.get("sizes") or {}).get("test"),
        parameters_total=parameters.get("total"),
        parameters_attention=parameters.get("attention"),
        seconds=cost.get("seconds"),
        seconds_per_step=cost.get("seconds_per_step"),
        peak_memory_bytes=cost.get("peak_memory_bytes"),
        device=str(cost.get("device") or ""),
        threads=cost.get("threads"),
        notes=tuple(str(note) for note in notes),
        grid=_grid(result, metrics),
    )


def _grid(result: Mapping[str, Any], metrics: Mapping[str, float]) -> GridPlace | None:
    """The grid that a result belongs to; its values are those of the configuration."""
    grid = result.get("grid")
    if grid is None:
        return None
    columns, lines = grid["axes"]
    spec = GridSpec((columns, lines), tuple(grid["replicates"]), tuple(grid["outcomes"]))
    shares = [metrics.get(name) for name in spec.outcomes]
    if sorted(share or 0.0 for share in shares) != [0.0] * (len(shares) - 1) + [100.0]:
        raise ReportError(f"result.json has not exactly one outcome of {', '.join(spec.outcomes)}")
    return GridPlace(spec, (), (result.get("cost") or {}).get("trained_together"))


_SHOWN_PACKAGES = ("torch", "lightning", "numpy", "transformers")


def _with_provenance(row: Row, provenance: Mapping[str, Any]) -> Row:
    """The part of the provenance that pages show; the rest stays in its file."""
    source = provenance.get("source") or {}
    packages = provenance.get("packages") or {}
    versions = {"python": provenance.get("python")} | {n: packages.get(n) for n in _SHOWN_PACKAGES}
    machine = provenance.get("machine") or {}
    return replace(
        row,
        commit=str(source.get("commit") or ""),
        dirty=str(source.get("dirty") or ""),
        command=str(provenance.get("command") or ""),
        versions=", ".join(f"{name} {version}" for name, version in versions.items() if version),
        machine=str(provenance.get("device_name") or machine.get("cpu") or ""),
    )


_INHERITED = ("model", "protocol_version", "kind", "fingerprint", "primary", "info", "test_size")


def _fill_unfinished(rows: list[Row]) -> list[Row]:
    """Give runs without a result the place in the tables that their finished siblings have.

    A sibling is a run with the same hash; else any on the same data set under the same protocol,
    recipe and budget; else, for what does not depend on the data set, any under these. Where
    siblings disagree nothing is assumed.
    """

    def shared(row: Row) -> tuple[str, ...]:
        kind = SYNTHETIC if row.kind == SYNTHETIC else ""
        return (row.domain, row.protocol, row.recipe, row.budget, kind)

    levels: list[tuple[Callable[[Row], tuple[str, ...]], tuple[str, ...]]] = [
        (lambda r: (r.domain, r.dataset, r.attention, r.hash), _INHERITED),
        (lambda r: (r.dataset, *shared(r)), _INHERITED),
        (shared, _INHERITED[:3]),
    ]
    finished = [row for row in rows if row.done]
    tables: list[dict[tuple[str, ...], Row | None]] = []
    for key_of, names in levels:
        table: dict[tuple[str, ...], Row | None] = {}
        for row in finished:
            other = table.setdefault(key_of(row), row)
            if other is not None and _agreed(other, names) != _agreed(row, names):
                table[key_of(row)] = None
        tables.append(table)
    filled = []
    for row in rows:
        if not row.done:
            for (key_of, names), table in zip(levels, tables, strict=True):
                sibling = table.get(key_of(row))
                if sibling is not None and row.model in ("", sibling.model):
                    row = replace(row, **{name: getattr(sibling, name) for name in names})
                    row = replace(
                        row, info={row.primary: row.info[row.primary]} if row.info else {}
                    )
                    break
        filled.append(row)
    return filled


def _agreed(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names if name not in ("info", "test_size"))
