"""Figures of values: dots, forests, cost beside quality, critical differences.

Figures are drawn without pyplot's global state, with fixed fonts, no dates and a fixed salt, so
equal data give equal bytes. Colours come from one palette that stays readable with colour
blindness; each variant has the same colour and marker everywhere.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import stats, words
from reports.analysis import GroupStats, View
from reports.costs import Cost
from reports.groups import Column
from reports.rows import BASELINE, PREFERRED_ORDER, variant_order

INK, MUTED, GRID = "#1b1f26", "#697180", "#dfe3e8"
# Okabe and Ito's colours, yellow replaced by purple; for the first of PREFERRED_ORDER.
PALETTE = (
    "#6f7887", "#0072b2", "#e69f00", "#cc79a7", "#009e73", "#d55e00", "#56b4e9", "#7a5195",
    "#8c6d31",
)  # fmt: skip
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">")
FIXED = PREFERRED_ORDER[: len(PALETTE)]
MAX_COLUMNS = 12
MAX_TASKS = 40

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "attention-benchmarks",
    "figure.dpi": 100,
    "axes.unicode_minus": True,
}


@dataclass(frozen=True)
class Picture:
    """A rendered figure.

    Attributes:
        name: file name without ending.
        title: heading.
        alt: what it shows, for people who do not see it.
        svg: document.
        png: image, 150 dots per inch.
    """

    name: str
    title: str
    alt: str
    svg: bytes
    png: bytes


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings for everything drawn inside."""
    with mpl.rc_context(_STYLE):
        yield


def render(figure: Figure, name: str, title: str, alt: str) -> Picture:
    """SVG and PNG of a figure; equal figures give equal bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Picture(name, title, alt, svg.getvalue(), png.getvalue())


def color(variant: str, variants: Sequence[str]) -> str:
    """Colour of a variant; those without one of their own take what the table leaves free."""
    return PALETTE[_slot_and_round(variant, variants)[0]]


def marker(variant: str, variants: Sequence[str]) -> str:
    """Marker of a variant, so that colour is never the only difference.

    Where there are more variants than colours, those of one colour differ in it.
    """
    return MARKERS[sum(_slot_and_round(variant, variants)) % len(MARKERS)]


def _slot_and_round(variant: str, variants: Sequence[str]) -> tuple[int, int]:
    """Place in the palette, and how many times it was given away before."""
    if variant in FIXED:
        return FIXED.index(variant), 0
    used = {FIXED.index(v) for v in variants if v in FIXED}
    free = [slot for slot in range(len(PALETTE)) if slot not in used]
    place = [v for v in variants if v not in FIXED].index(variant)
    if place < len(free):
        return free[place], 0
    rounds, slot = divmod(place - len(free), len(PALETTE))
    return slot, 1 + rounds


def panels(
    count: int,
    across: int,
    width: float,
    height: float,
    *,
    labels: Sequence[str] = (),
    legend_of: Sequence[str] = (),
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of `across`.

    Margins are given, not searched for: an automatic layout would take as long as the drawing.

    Args:
        count: of axes.
        across: axes in a full row.
        width: of one panel, inches.
        height: of one panel, inches.
        labels: of the rows, for panels that share them; else each panel has an axis of its own.
        legend_of: names that :func:`legend` will list below, for which room is left.
    """
    across = min(across, count)
    down = math.ceil(count / across)
    left = 0.2 + 0.078 * max(map(len, labels)) if labels else 0.62
    gap = 0.16 if labels else 0.68
    right, top, bottom = 0.14, 0.3, 0.5
    total_width = max(width * across, left + right + 1.6 * across)
    foot = 0.08 + 0.2 * math.ceil(len(legend_of) / _abreast(legend_of, total_width))
    total_height = height * down + foot
    inner_width = (total_width - left - right - gap * (across - 1)) / across
    inner_height = height - top - bottom
    figure = Figure(figsize=(total_width, total_height))
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, squeeze=False, sharey=bool(labels))
    figure.subplots_adjust(
        left=left / total_width,
        right=1 - right / total_width,
        top=1 - top / total_height,
        bottom=(bottom + foot) / total_height,
        wspace=gap / inner_width,
        hspace=(top + bottom) / inner_height,
    )
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def not_drawn(names: Sequence[str]) -> str:
    """A sentence that names what a figure has no room for, empty if there is nothing."""
    return f" Not drawn: {words.listing(list(names))}." if names else ""


def values(table: GroupStats) -> Picture | None:
    """Value of every seed with mean and 95 % interval, one panel a data set."""
    every = [c for c in table.group.columns if c.primary]
    columns = every[:MAX_COLUMNS]
    if not columns:
        return None
    variants = table.group.variants
    with style():
        height = 0.85 + 0.24 * len(variants)
        figure, axes = panels(len(columns), 3, 3.35, height, labels=variants)
        for axis, column in zip(axes, columns, strict=True):
            _dots(axis, table, column)
        axes[0].set_ylim(len(variants) - 0.4, -0.6)
        alt = (
            f"Dot plot for {table.group.key.title()}: each dot is one seed, the bar the mean with "
            f"its 95 % t-interval.{not_drawn([c.label for c in every[MAX_COLUMNS:]])}"
        )
        return render(figure, f"{table.group.slug}_values", "Values by seed", alt)


def _dots(axis: Axes, table: GroupStats, column: Column) -> None:
    variants = table.group.variants
    every: list[float] = []
    for y, variant in enumerate(variants):
        found = list(column.cells[variant].values(column.primary).values())
        tint = color(variant, variants)
        if not found:
            words_ = ", ".join(column.cells[variant].words())
            axis.text(
                0.02, y, words_, transform=axis.get_yaxis_transform(), va="center", color=MUTED,
                fontsize=8, style="italic",
            )  # fmt: skip
            continue
        every += found
        sample = stats.describe(found)
        assert sample is not None
        if sample.sd:
            half = stats.t_quantile(sample.n - 1) * sample.sd / math.sqrt(sample.n)
            axis.plot([sample.mean - half, sample.mean + half], [y, y], color=tint, lw=1.6)
        axis.plot([sample.mean] * 2, [y - 0.28, y + 0.28], color=tint, lw=2.4)
        # Seeds are spread a little, in their order, so that equal values stay visible.
        spread = np.linspace(-0.18, 0.18, len(found)) if len(found) > 1 else [0.0]
        axis.scatter(
            found, y + np.asarray(spread), s=20, color=tint, alpha=0.55, linewidths=0,
            marker=marker(variant, variants), zorder=3,
        )  # fmt: skip
    if every:
        low, high = min(every), max(every)
        room = (high - low) or abs(high) * 0.01 or 1.0
        left, right = axis.get_xlim()
        axis.set_xlim(max(left, low - room), min(right, high + room))
    arrow = words.direction(column.info.higher_is_better)
    axis.set_title(f"{column.label} {arrow}")
    axis.set_xlabel(", ".join(p for p in (column.primary, column.info.unit) if p))
    axis.set_yticks(range(len(variants)), variants)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    axis.grid(axis="y", visible=False)
    axis.locator_params(axis="x", nbins=5)


def forest(view: View) -> Picture | None:
    """Relative change to the baseline per task with interval, one panel a variant."""
    every = [(t, c) for t, c in view.tasks() if c.info.higher_is_better is not None]
    tasks = every[:MAX_TASKS]
    names = {v for t, _ in tasks for v in t.group.variants if v != BASELINE}
    variants = sorted(names, key=variant_order)
    if not variants or not tasks:
        return None
    summary = {row.variant: row for row in view.rows}
    several = len({t.group.key.domain for t, _ in tasks}) > 1
    labels = [f"{t.group.key.domain}: {c.label}" if several else c.label for t, c in tasks]
    extra = 1 if summary and len(tasks) > 1 else 0
    rows = len(tasks) + extra
    ticks = labels + (["all (IQM)"] if extra else [])
    with style():
        figure, axes = panels(len(variants), 4, 2.55, 0.9 + 0.26 * rows, labels=ticks)
        for axis, variant in zip(axes, variants, strict=True):
            tint = color(variant, [BASELINE, *variants])
            axis.axvline(0, color=MUTED, lw=1)
            for y, (table, column) in enumerate(tasks):
                cell = table.cells.get((variant, column.label))
                relative = cell.relative if cell else None
                if cell is None or relative is None:
                    text = ", ".join(cell.cell.words()) if cell else "not run"
                    axis.text(
                        0.03, y, text or "no pair", transform=axis.get_yaxis_transform(),
                        va="center", color=MUTED, fontsize=7.5, style="italic",
                    )  # fmt: skip
                    continue
                if relative.interval:
                    axis.plot([relative.interval.low, relative.interval.high], [y, y],
                              color=tint, lw=1.8, solid_capstyle="butt")  # fmt: skip
                axis.plot(relative.mean, y, marker="o", ms=6, mec=tint, mew=1.4,
                          mfc=tint if relative.interval else "none")  # fmt: skip
            change = summary[variant].change if extra and variant in summary else None
            if change is not None:
                if change.interval:
                    axis.plot([change.interval.low, change.interval.high], [rows - 1] * 2,
                              color=INK, lw=1.8)  # fmt: skip
                axis.plot(change.value, rows - 1, marker="D", ms=6, color=INK)
            axis.set_title(variant)
            axis.tick_params(axis="y", length=0, labelcolor=INK)
            axis.grid(axis="y", visible=False)
            axis.locator_params(axis="x", nbins=5)
            axis.set_xlabel(f"change to {BASELINE}, %")
        axes[0].set_yticks(range(rows), ticks)
        axes[0].set_ylim(rows - 0.5, -0.5)
        limits = [limit for axis in axes for limit in axis.dataLim.intervalx if abs(limit) < 1e9]
        low, high = min([0.0, *limits]), max([0.0, *limits])
        room = 0.06 * (high - low) or 1.0
        for axis in axes:
            axis.set_xlim(low - room, high + room)
        alt = (
            f"Forest plot: relative change to {BASELINE} per data set with 95 % interval, one "
            "panel a variant, right of zero is better; hollow marks have no interval."
            f"{not_drawn([column.label for _, column in every[MAX_TASKS:]])}"
        )
        return render(figure, f"{view.slug}_forest", f"Relative change to {BASELINE}", alt)


def cost_and_quality(table: GroupStats) -> Picture | None:
    """Mean of the metric over time per step as a ratio to the baseline."""
    shown = []
    for column in table.group.columns:
        points = []
        base = Cost.of(column.cells[BASELINE]) if BASELINE in column.cells else None
        for cell in table.column(column):
            own = Cost.of(cell.cell)
            if not base or not base.seconds_per_step or not own.seconds_per_step:
                continue
            if cell.sample is not None and own.places == base.places:
                points.append((cell, own.seconds_per_step / base.seconds_per_step))
        if len(points) > 1:
            shown.append((column, points))
    if not shown:
        return None
    shown, rest = shown[: MAX_COLUMNS // 2], shown[MAX_COLUMNS // 2 :]
    variants = table.group.variants
    with style():
        figure, axes = panels(len(shown), 3, 3.35, 2.6, legend_of=variants)
        for axis, (column, points) in zip(axes, shown, strict=True):
            axis.axvline(1, color=MUTED, lw=1)
            axis.axvline(1.1, color=MUTED, lw=0.8, ls=(0, (4, 3)))
            for cell, ratio in points:
                assert cell.sample is not None
                axis.errorbar(
                    ratio, cell.sample.mean, yerr=cell.sample.sd or 0, ms=7,
                    fmt=marker(cell.variant, variants), elinewidth=1.1, mew=0,
                    color=color(cell.variant, variants), label=cell.variant,
                )  # fmt: skip
            axis.set_title(f"{column.label} {words.direction(column.info.higher_is_better)}")
            axis.set_xlabel(f"time per step, ratio to {BASELINE}")
            axis.set_ylabel(", ".join(p for p in (column.primary, column.info.unit) if p))
            axis.margins(x=0.15, y=0.15)
            axis.locator_params(nbins=5)
        legend(figure, axes)
        alt = (
            f"Scatter plot: mean with sd of the metric over time per step relative to {BASELINE}; "
            f"the dashed line is a ratio of 1.10.{not_drawn([column.label for column, _ in rest])}"
        )
        return render(figure, f"{table.group.slug}_cost_quality", "Cost beside quality", alt)


def _abreast(names: Sequence[str], width: float) -> int:
    """How many entries of a legend fit into one of its rows, `width` in inches."""
    longest = max(map(len, names), default=1)
    return max(1, min(len(names), int((width - 0.3) / (0.075 * longest + 0.55))))


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    ordered = sorted(entries, key=variant_order)
    figure.legend(
        [entries[label] for label in ordered], ordered, loc="lower left",
        ncols=_abreast(ordered, figure.get_figwidth()), handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
