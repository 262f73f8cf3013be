"""The critical-difference diagram.

Source: Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006).
"""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.analysis import View
from reports.plots import INK, MUTED, Picture, color, render, style


def critical_difference(view: View) -> Picture | None:
    """Average ranks; bars join variants that no test separates. None where nothing could be."""
    comparison = view.comparison
    if comparison is None or len(comparison.names) < 3:
        return None
    k = len(comparison.names)
    half = (k + 1) // 2
    with style():
        edge = 0.078 * (max(map(len, comparison.names)) + 7) + 0.3
        width = edge * 2 + 0.62 * (k - 1)
        height = 1.0 + 0.26 * half + 0.12 * len(comparison.cliques)
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axis.set_axis_off()
        axis.set_xlim(1 - edge / 0.62, k + edge / 0.62)
        top = 0.9 + 0.35 * len(comparison.cliques)
        axis.set_ylim(-(top + 0.75 * half + 0.2), 1.0)
        axis.plot([1, k], [0, 0], color=INK, lw=1)
        for rank in range(1, k + 1):
            axis.plot([rank, rank], [0, 0.18], color=INK, lw=1)
            axis.text(rank, 0.3, str(rank), ha="center", va="bottom", fontsize=8.5, color=MUTED)
        for position, (name, average) in enumerate(
            zip(comparison.names, comparison.average_ranks, strict=True)
        ):
            left = position < half
            level = position if left else k - 1 - position
            y = -(top + 0.75 * level)
            end = 0.9 if left else k + 0.1
            tint = color(name, comparison.names)
            axis.plot([average, average, end], [0, y, y], color=tint, lw=1.2)
            axis.text(
                end - 0.08 if left else end + 0.08, y, f"{name} ({average:.2f})",
                ha="right" if left else "left", va="center", fontsize=9,
            )  # fmt: skip
        for level, (first, last) in enumerate(comparison.cliques):
            y = -(0.4 + 0.35 * level)
            ends = comparison.average_ranks[first] - 0.05, comparison.average_ranks[last] + 0.05
            axis.plot(ends, [y, y], color=INK, lw=3.2, solid_capstyle="round")
        alt = (
            f"Critical-difference diagram over {comparison.tasks} tasks: average ranks, 1 is best; "
            "bars join variants that exact Wilcoxon tests with Holm's correction do not separate."
        )
        title = "Average ranks with critical differences"
        return render(figure, f"{view.slug}_ranks", title, alt)
