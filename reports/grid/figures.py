"""Figures of a study: heat maps of success, accuracies by outcome, success over one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.patches import Patch, Rectangle

from reports import plots, words
from reports.grid.evaluation import StudyStats, VariantStats
from reports.grid.families import Family, Member
from reports.grid.parts import rate_text
from reports.grid.studies import DIVERGED, Study, called
from reports.plots import Picture

# Not one of the palette's colours, which the page replaces by those of its scheme: numbers in
# cells need a fixed contrast to what is below them.
RAMP = LinearSegmentedColormap.from_list(
    "success", ["#f1f4f8", "#c9dcec", "#8dbad9", "#4a90c2", "#1766a0", "#0a3f70"]
)
ON_LIGHT, ON_DARK = "#14181f", "#fdfdfe"
DARK_FROM = 68.0
"""Percent from which light numbers have the higher contrast."""

OUTCOME_COLORS = ("#009e73", "#d55e00", "#56b4e9", "#6f7887", "#7a5195")
"""Okabe and Ito's green and vermilion for success and the failure of interest, in order."""
BINS = 40

REFERENCE = "reference run"
HOLLOW: Any = {"ls": (0, (1.5, 2.5)), "lw": 1.1, "ms": 6.5, "mfc": "none", "mew": 1.2, "zorder": 2}
"""How numbers that are not ours are drawn."""


def outcome_colors(study: Study) -> Mapping[str, str]:
    """Colour of each outcome; the same in every figure."""
    names = [name for name in study.outcomes if name != DIVERGED]
    return {name: OUTCOME_COLORS[i % len(OUTCOME_COLORS)] for i, name in enumerate(names)}


def heat_maps(stats: StudyStats) -> Picture | None:
    """Success at each point of the grid, one panel a variant; None for a single line or column."""
    study = stats.study
    shown = [own for own in stats.variants if own.rate is not None]
    if not shown or min(len(study.columns), len(study.lines)) < 2:
        return None
    across = len(shown) if len(shown) < 4 else (len(shown) + 1) // 2 if len(shown) < 7 else 3
    with plots.style():
        width = max(3.0, 0.75 + 0.46 * len(study.columns))
        height = 1.0 + 0.36 * len(study.lines)
        figure, axes = plots.panels(len(shown), across, width, height)
        for axis, own in zip(axes, shown, strict=True):
            _heat_map(axis, study, own)
        for index, axis in enumerate(axes):
            if index % across:
                axis.set_ylabel("")
        alt = (
            f"Heat maps: percent of the runs that end {study.outcomes[0]} at each "
            f"{called(study.spec.axes[0])} (across) and {called(study.spec.axes[1])} (down), one "
            "panel a variant; in the titles the rate over the whole grid with its 95 % interval. "
            "Each cell has "
            f"{words.count(len(study.data) * len(study.seeds), 'run')}."
        )
        return plots.render(figure, f"{study.slug}_success", "Success over the grid", alt)


def _heat_map(axis: Axes, study: Study, own: VariantStats) -> None:
    for x in range(len(study.columns)):
        for y in range(len(study.lines)):
            percent = float(own.cells[x, y])
            if np.isnan(percent):
                axis.text(x, y, "–", ha="center", va="center", color=plots.MUTED, fontsize=8.5)
                continue
            tint = to_hex(RAMP(percent / 100))
            axis.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, color=tint, lw=0))
            ink = ON_DARK if percent >= DARK_FROM else ON_LIGHT
            axis.text(
                x, y, words.number(percent, 0), ha="center", va="center", color=ink, fontsize=8.5
            )
    assert own.rate is not None
    rate, _, interval = rate_text(own.rate).partition(" ")
    axis.set_title(f"{own.variant}: {rate} % {interval}".rstrip())
    axis.set_xlim(-0.5, len(study.columns) - 0.5)
    axis.set_ylim(len(study.lines) - 0.5, -0.5)
    axis.set_xticks(range(len(study.columns)), study.columns)
    axis.set_yticks(range(len(study.lines)), study.lines)
    axis.set_xlabel(called(study.spec.axes[0]))
    axis.set_ylabel(called(study.spec.axes[1]))
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for side in axis.spines.values():
        side.set_visible(False)


def accuracies(stats: StudyStats) -> Picture | None:
    """Distribution of training and test accuracy, coloured by outcome, one row a variant."""
    study = stats.study
    names = [f"{split}/accuracy" for split in ("train", "test")]
    found = {
        (variant, name): _by_outcome(study, variant, name)
        for variant in study.variants
        for name in names
    }
    shown = [v for v in study.variants if any(found[(v, name)] for name in names)]
    if not shown:
        return None
    tints = outcome_colors(study)
    edges = np.linspace(0, 100, BINS + 1)
    with plots.style():
        figure, axes = plots.panels(2 * len(shown), 2, 4.1, 1.6, legend_of=list(tints))
        for index, axis in enumerate(axes):
            variant, name = shown[index // 2], names[index % 2]
            _histogram(axis, found[(variant, name)], tints, edges)
            axis.set_title(f"{variant}, {'training' if index % 2 == 0 else 'test'} accuracy")
            axis.set_ylabel("% of runs")
            if index // 2 == len(shown) - 1:
                axis.set_xlabel("accuracy after the last epoch, %")
        top = max(axis.get_ylim()[1] for axis in axes)
        for axis in axes:
            axis.set_ylim(0, top)
        handles = [Patch(facecolor=tint, label=name) for name, tint in tints.items()]
        figure.legend(handles=handles, loc="lower left", ncols=len(handles))
        alt = (
            f"Histograms of the accuracies of all runs in bins of {100 / BINS:g} points, stacked "
            "and coloured by outcome: training left, test right, one row a variant."
        )
        return plots.render(figure, f"{study.slug}_accuracies", "Accuracies of all runs", alt)


def _by_outcome(study: Study, variant: str, metric: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    codes = study.codes[variant]
    for place, row in study.by_variant[variant].items():
        if row.done and metric in row.metrics:
            found.setdefault(study.outcomes[codes[place]], []).append(row.metrics[metric])
    return found


def _histogram(
    axis: Axes,
    found: Mapping[str, Sequence[float]],
    tints: Mapping[str, str],
    edges: np.ndarray,
) -> None:
    total = sum(map(len, found.values()))
    base = np.zeros(len(edges) - 1)
    for outcome, tint in tints.items():
        counts, _ = np.histogram(found.get(outcome, ()), edges)
        if counts.any():
            heights = base + 100 * counts / total
            axis.stairs(heights, edges, baseline=base, fill=True, color=tint, lw=0)
            base = heights
    axis.set_xlim(edges[0], edges[-1])
    axis.grid(axis="x", visible=False)
    axis.locator_params(axis="y", nbins=4)


def over_setting(family: Family) -> Picture:
    """Success and attention over the values of a setting: lines for numbers, else marks."""
    names = list(family.studies)
    numbers = _numbers(names)
    readings = any(member.attention is not None for member in family.members.values())
    quoted = any(member.quoted.success is not None for member in family.members.values())
    keys = [*family.variants, *([REFERENCE] if quoted else [])]
    with plots.style():
        figure, axes = plots.panels(2 if readings else 1, 2, 4.1, 2.9, legend_of=keys)
        for index, variant in enumerate(family.variants):
            members = [family.members[(variant, name)] for name in names]
            # Marks beside one another where lines would suggest an order.
            aside = 0.0 if numbers else 0.14 * (index - (len(family.variants) - 1) / 2)
            series = _Series(
                numbers or [position + aside for position in range(len(names))],
                plots.color(variant, family.variants),
                plots.marker(variant, family.variants),
                variant,
                joined=bool(numbers),
            )
            _success(axes[0], series, members)
            if readings:
                _draw(axes[1], series, [member.attention for member in members])
                _quote(axes[1], series, [member.quoted.attention for member in members])
        axes[0].set_title("success ↑")
        axes[0].set_ylabel("% of runs")
        axes[0].set_ylim(-3, 103)
        if readings:
            axes[1].set_title("attention on unbiased answers")
            axes[1].set_ylim(-0.03, 1.03)
        for axis in axes:
            axis.set_xlabel(called(family.name))
            if numbers and min(numbers) > 0 and max(numbers) / min(numbers) > 4:
                axis.set_xscale("log")
            axis.set_xticks(numbers or range(len(names)), names)
            axis.minorticks_off()
        if quoted:
            axes[0].plot([], [], color=plots.MUTED, label=REFERENCE, **HOLLOW, marker="o")
        plots.legend(figure, axes)
        what = "Success and attention" if readings else "Success"
        alt = f"{what} by {called(family.name)}, success with its 95 % interval"
        alt += "; hollow marks are those of the reference run." if quoted else "."
        return plots.render(figure, f"{family.slug}_success", family.title(), alt)


@dataclass(frozen=True)
class _Series:
    """How the numbers of one variant are drawn, and at which places."""

    places: Sequence[float]
    tint: str
    sign: str
    label: str
    joined: bool


def _numbers(names: Sequence[str]) -> list[float]:
    """Values as numbers, none if one is a word."""
    try:
        return [float(name) for name in names]
    except ValueError:
        return []


def _success(axis: Axes, series: _Series, members: Sequence[Member]) -> None:
    _draw(axis, series, [member.rate.percent if member.rate else None for member in members])
    ends = [
        (x, m.rate.interval.low, m.rate.interval.high)
        for x, m in zip(series.places, members, strict=True)
        if m.rate and m.rate.interval
    ]
    places, low, high = ([end[index] for end in ends] for index in range(3))
    if series.joined:
        axis.fill_between(places, low, high, color=series.tint, alpha=0.14, lw=0)
    else:
        axis.vlines(places, low, high, color=series.tint, lw=1.6)
    _quote(axis, series, [member.quoted.success for member in members])


def _draw(axis: Axes, series: _Series, values: Sequence[float | None]) -> None:
    shown = [(x, y) for x, y in zip(series.places, values, strict=True) if y is not None]
    axis.plot(
        [x for x, _ in shown], [y for _, y in shown], color=series.tint, marker=series.sign, ms=6,
        mew=0, lw=1.8 if series.joined else 0, label=series.label, zorder=3,
    )  # fmt: skip


def _quote(axis: Axes, series: _Series, values: Sequence[float | None]) -> None:
    shown = [(x, y) for x, y in zip(series.places, values, strict=True) if y is not None]
    if shown:
        axis.plot(
            [x for x, _ in shown], [y for _, y in shown], color=series.tint, marker=series.sign,
            **HOLLOW,
        )  # fmt: skip
