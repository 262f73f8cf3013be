"""The page: one file that opens offline, with everything inline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports import plots, words
from reports.across import Finding
from reports.groups import run_command
from reports.parts import SPREAD
from reports.plots import Picture
from reports.report import Report
from reports.rows import BASELINE, Row
from reports.tables import missing

FOLDER = Path(__file__).parent / "templates"

_COLORS = {
    plots.INK: "ink",
    plots.MUTED: "muted",
    plots.GRID: "grid",
    **{color: f"series-{number}" for number, color in enumerate(plots.PALETTE)},
}


def page(report: Report) -> str:
    """The report as HTML."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=report.facts(),
        sections=report.sections,
        grids=report.grids,
        views=report.views,
        unfilled=missing([section.table for section in report.sections]),
        incomplete=report.grids.missing(),
        data=_json(_provenance(report)),
        inline=inline,
        bars=bars,
        count=words.count,
        spread=SPREAD,
        baseline=BASELINE,
        palette=list(enumerate(plots.PALETTE)),
    )


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _provenance(report: Report) -> dict[str, Any]:
    """Runs for the dialogs; texts that many runs share are stored once."""
    texts: dict[str, int] = {}

    def index(text: str) -> int:
        return texts.setdefault(text, len(texts))

    groups: dict[str, dict[str, list[list[Any]]]] = {}
    for section in report.sections:
        group = section.table.group
        cells = groups.setdefault(group.slug, {})
        for column in group.columns:
            for cell in column.cells.values():
                cells[f"{column.label}/{cell.variant}"] = [
                    _run(row, index) for _, row in sorted(cell.rows.items())
                ]
    return {"groups": groups, "texts": list(texts)}


def _run(row: Row, index: Callable[[str], int]) -> list[Any]:
    value = row.metrics.get(row.primary)
    environment = "; ".join(part for part in (row.machine, row.versions) if part)
    place = ", ".join(
        part
        for part in (row.device, words.count(row.threads, "thread") if row.threads else "")
        if part
    )
    commit = row.commit + (f" + uncommitted changes {row.dirty}" if row.dirty else "")
    return [
        row.seed,
        row.state,
        value,
        index(row.primary),
        row.selected_epoch,
        index(row.selection_rule),
        row.hash,
        row.path,
        row.time,
        index(commit),
        index(row.command),
        index(environment),
        index(place),
        index(row.fingerprint),
        run_command(row, row.dataset, [row.seed]),
        row.reason,
    ]


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _COLORS)))


def inline(picture: Picture) -> Markup:
    """A figure's SVG to stand in the page: its colours and fonts follow the page's scheme."""
    svg = picture.svg.decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = _pattern().sub(lambda match: f"var(--{_COLORS[match[0]]})", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r' id="(?!m|p)[^"]*"', "", svg)
    # Names of clip paths and markers are unique in a figure only.
    prefix = re.sub(r"\W", "_", picture.name)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\1{prefix}-", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    width = re.search(r'width="([\d.]+)pt"', svg)
    assert width is not None
    pixels = float(width[1]) * 100 / 72
    head = (
        f'<svg class="plot" role="img" aria-label="{Markup.escape(picture.alt)}" '
        f'style="max-width:{pixels:.0f}px;min-width:{min(pixels, 480):.0f}px"'
    )
    svg = re.sub(r'<svg xmlns:xlink="[^"]*" width="[^"]*" height="[^"]*"', head, svg, count=1)
    return Markup(svg)


def bars(findings: tuple[Finding, ...]) -> list[tuple[Finding, Markup]]:
    """Findings with a small drawing of their interval on a scale that they share."""
    reach = 0.0
    for finding in findings:
        if finding.bar:
            ends = finding.bar.interval
            values = (ends.low, ends.high) if ends else (finding.bar.mean,)
            reach = max(reach, *map(abs, values))
    return [(finding, _bar(finding, reach or 1.0)) for finding in findings]


def _bar(finding: Finding, reach: float) -> Markup:
    middle = 70.0
    if finding.bar is None:
        return Markup("<span></span>")

    def place(value: float) -> str:
        return f"{middle + value / reach * (middle - 6):.1f}"

    drawn = f'<line class="zero" x1="{middle}" y1="1" x2="{middle}" y2="17"/>'
    ends = finding.bar.interval
    if ends:
        drawn += (
            f'<line class="range" x1="{place(ends.low)}" y1="9" x2="{place(ends.high)}" y2="9"/>'
        )
    hollow = "" if ends else ' class="hollow"'
    drawn += f'<circle{hollow} cx="{place(finding.bar.mean)}" cy="9" r="3.6"/>'
    return Markup(
        f'<svg class="bar {finding.tone}" viewBox="0 0 {2 * middle:.0f} 18" '
        f'width="{2 * middle:.0f}" height="18" aria-hidden="true">{drawn}</svg>'
    )
