"""Figures of what happens inside the models during training, one panel a variant and outcome."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from reports import plots
from reports.grid.evaluation import StudyStats
from reports.grid.probes import ATTENTION, KEY_NORMS, SPREAD, Course, Probes
from reports.plots import Picture

LINES: Mapping[str, tuple[str, str, str]] = {
    "biased answer": ("#d55e00", "s", "-"),
    "unbiased answer": ("#0072b2", "o", "-"),
    "other tokens": ("#6f7887", "^", "--"),
}
"""Colour, marker and dash of each kind of token."""
MIN_SHARE = 5.0
"""Percent of the runs of some variant that an outcome needs to have panels."""


def norms(stats: StudyStats, probes: Probes) -> Picture | None:
    """Norms of the keys over training."""
    return _draw(
        stats, probes, KEY_NORMS, "key_norms", "Key norms during training",
        "mean key norm", None,
    )  # fmt: skip


def attention(stats: StudyStats, probes: Probes) -> Picture | None:
    """Attention of the read-out token over training."""
    return _draw(
        stats, probes, ATTENTION, "attention", "Attention during training",
        "attention mass", 1.0,
    )  # fmt: skip


def _draw(
    stats: StudyStats,
    probes: Probes,
    names: Mapping[str, str],
    kind: str,
    title: str,
    unit: str,
    top: float | None,
) -> Picture | None:
    study = stats.study
    common = [o for o in study.outcomes if any(v.shares[o] >= MIN_SHARE for v in stats.variants)]
    courses = {
        (variant, outcome): course
        for variant in study.variants
        for outcome in common
        if (course := probes.courses.get((study.key, variant, outcome)))
        and any(name in course.curves for name in names)
    }
    if not courses:
        return None
    rows = [v for v in study.variants if any(variant == v for variant, _ in courses)]
    columns = [o for o in common if any(outcome == o for _, outcome in courses)]
    with plots.style():
        figure, axes = plots.panels(
            len(rows) * len(columns), len(columns), 2.75, 1.75, legend_of=list(LINES)
        )
        highest = 0.0
        for index, axis in enumerate(axes):
            variant, outcome = rows[index // len(columns)], columns[index % len(columns)]
            course = courses.get((variant, outcome))
            axis.set_title(f"{variant}, {outcome}" + (f" ({course.runs:,})" if course else ""))
            if course is None:
                axis.text(
                    0.5, 0.5, "no run", transform=axis.transAxes, ha="center", va="center",
                    color=plots.MUTED, fontsize=8, style="italic",
                )  # fmt: skip
            else:
                highest = max(highest, _panel(axis, course, names))
            if index % len(columns) == 0:
                axis.set_ylabel(unit)
            if index // len(columns) == len(rows) - 1:
                axis.set_xlabel("epoch")
        last = max(course.epochs[-1] for course in courses.values())
        for axis in axes:
            axis.set_ylim(0, (top or highest) * 1.04)
            axis.set_xlim(0, last)
            axis.locator_params(nbins=4)
        handles = [
            Line2D([], [], color=tint, marker=sign, ls=dash, lw=1.6, ms=4.5, mew=0, label=label)
            for label, (tint, sign, dash) in LINES.items()
        ]
        figure.legend(handles=handles, loc="lower left", ncols=len(handles))
        alt = (
            f"{title}: {unit} on {', '.join(names.values())}, one panel a variant and outcome with "
            f"the number of its runs; lines are means over runs, bands hold the middle "
            f"{SPREAD[1] - SPREAD[0]:.0f} % of them. Epoch 0 is before training. Left out: "
            f"outcomes of less than {MIN_SHARE:g} % of the runs of every variant."
        )
        return plots.render(figure, f"{study.slug}_{kind}", title, alt)


def _panel(axis: Axes, course: Course, names: Mapping[str, str]) -> float:
    highest = 0.0
    for name, label in names.items():
        curve = course.curves.get(name)
        if curve is None:
            continue
        tint, sign, dash = LINES[label]
        every = max(1, len(course.epochs) // 4)
        axis.plot(
            course.epochs, curve.mean, color=tint, ls=dash, lw=1.6, marker=sign, ms=4, mew=0,
            markevery=every,
        )  # fmt: skip
        if course.runs > 1:
            axis.fill_between(course.epochs, curve.low, curve.high, color=tint, alpha=0.15, lw=0)
        highest = max(highest, *curve.mean, *curve.high)
    return highest
