"""Curves over training: telemetry of the attention, losses and metrics.

Files of curves are large, so only what is drawn is read: a bounded number of data sets and of
seeds per variant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks.store import RunKey, Store
from reports import plots
from reports.groups import Cell, Column, Group
from reports.plots import Picture

MAX_FIGURES = 5
"""Data sets of a report for which curves are drawn."""
MAX_SEEDS = 5
MAX_VARIANTS = 9
MAX_POINTS = 300

READINGS: Mapping[str, tuple[str, bool]] = {
    "max_logit": ("largest logit", True),
    "entropy": ("entropy of attention, nats", False),
    "query_norm_mean": ("mean query norm", False),
    "key_norm_mean": ("mean key norm", False),
    "query_norm_max": ("largest query norm", True),
    "key_norm_max": ("largest key norm", True),
}
"""Label, and whether layers and heads are summarised by their maximum instead of their mean."""

Series = dict[int, list[float]]
"""Values of the seeds by step."""
Curves = dict[str, dict[str, Series]]
"""By name of the quantity, by variant."""


def read(root: Path, column: Column, variants: Sequence[str]) -> Curves:
    """Curves of one data set, of the last phase of each run.

    Args:
        root: the store.
        column: whose runs to read.
        variants: to read, of each the first seeds.
    """
    store = Store(root)
    curves: Curves = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for variant in variants[:MAX_VARIANTS]:
        for row in _finished(column.cells[variant])[:MAX_SEEDS]:
            with suppress(OSError):  # a run without curves is no reason to have no report
                records = store.run(RunKey(*row)).metrics()
                for name, step, value in _points(records):
                    curves[name][variant][step].append(value)
    return curves


def _finished(cell: Cell) -> list[tuple[str, str, str, str, int]]:
    rows = [cell.rows[seed] for seed in sorted(cell.rows)]
    return [row.run_key for row in rows if row.state in ("done", "diverged")]


def _points(records: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, int, float]]:
    last = records[-1].get("phase") if records else None
    for record in records:
        step = record.get("step")
        if record.get("phase") != last or not isinstance(step, int):
            continue
        for name, value in (record.get("values") or {}).items():
            if _finite(value):
                yield name, step, float(value)
        layers = (record.get("telemetry") or {}).values()
        for name, (_, largest) in READINGS.items():
            heads = [v for layer in layers for v in layer.get(name, ()) if _finite(v)]
            if heads:
                yield name, step, max(heads) if largest else sum(heads) / len(heads)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def telemetry(group: Group, column: Column, curves: Curves) -> Picture | None:
    """Readings of the attention over training steps, one panel a quantity."""
    names = [name for name in READINGS if curves.get(name)]
    labels = {name: READINGS[name][0] for name in names}
    return _draw(group, column, curves, labels, "telemetry", "Attention during training")


def learning(group: Group, column: Column, curves: Curves) -> Picture | None:
    """Loss and the primary metric over training steps."""
    measure = column.primary.partition("/")[2]
    wanted = ["train/loss", f"val/{measure}", f"test/{measure}"]
    labels = {name: name for name in wanted if curves.get(name)}
    return _draw(group, column, curves, labels, "learning", "Learning curves")


def _draw(
    group: Group,
    column: Column,
    curves: Curves,
    labels: Mapping[str, str],
    kind: str,
    title: str,
) -> Picture | None:
    if not labels:
        return None
    with plots.style():
        figure, axes = plots.panels(len(labels), 3, 3.35, 2.15, legend_of=group.variants)
        for axis, (name, label) in zip(axes, labels.items(), strict=True):
            for variant in group.variants:
                _line(axis, curves[name].get(variant, {}), variant, group.variants)
            axis.set_title(label)
            axis.set_xlabel("training step")
            axis.locator_params(axis="x", nbins=5)
            if name == "max_logit":
                _log_if_wide(axis)
        plots.legend(figure, axes)
        alt = (
            f"{title} on {column.label}: {', '.join(labels.values())} over steps; lines are means "
            f"over seeds, bands their range.{plots.not_drawn(group.variants[MAX_VARIANTS:])}"
        )
        if any(len(_finished(cell)) > MAX_SEEDS for cell in column.cells.values()):
            alt += f" Of each variant, the first {MAX_SEEDS} seeds are drawn."
        name = f"{group.slug}_{column.label.replace(' ', '_')}_{kind}"
        return plots.render(figure, name, f"{title}: {column.label}", alt)


def _line(axis: Axes, series: Series, variant: str, variants: Sequence[str]) -> None:
    if not series:
        return
    runs = max(len(values) for values in series.values())
    # Runs stop at different steps; where fewer than half remain a mean would jump.
    steps = sorted(step for step, values in series.items() if 2 * len(values) >= runs)
    steps = steps[:: max(1, len(steps) // MAX_POINTS)]
    if not steps:
        return
    means = [float(np.mean(series[step])) for step in steps]
    tint = plots.color(variant, variants)
    every = max(1, len(steps) // 6)
    axis.plot(
        steps, means, color=tint, lw=1.4, label=variant, ms=3.6, mew=0, markevery=every,
        marker=plots.marker(variant, variants),
    )  # fmt: skip
    low, high = [min(series[step]) for step in steps], [max(series[step]) for step in steps]
    axis.fill_between(steps, low, high, color=tint, alpha=0.13, lw=0)


def _log_if_wide(axis: Axes) -> None:
    """Logits of unbounded variants grow by orders of magnitude beside bounded ones."""
    data = [y for line in axis.get_lines() for y in np.asarray(line.get_ydata(), float)]
    if data and min(data) > 0 and max(data) / min(data) > 20:
        axis.set_yscale("log")
