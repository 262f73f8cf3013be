"""A whole report: everything evaluated, laid out and drawn, as files in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports import across, analysis, critical, curves, export, gallery, plots, words
from reports.across import Finding
from reports.analysis import GroupStats, View
from reports.frame import Frame
from reports.gallery import Gallery, Shot
from reports.grid.export import grid_files
from reports.grid.sections import Grids, build_grids
from reports.groups import arrange
from reports.plots import Picture
from reports.rows import ReportError, Row, variant_order
from reports.table import Table, md_line, to_csv, to_latex, to_markdown
from reports.tables import missing, tables_of

DIGITS = 10
"""Of derived numbers in CSV files: more would differ between versions of the libraries."""


@dataclass(frozen=True)
class Section:
    """Tables and figures of one group of runs.

    Attributes:
        table: the group, evaluated.
        tables: laid out, quality first.
        findings: in sentences.
        pictures: of values.
        curves: of training, by data set.
        galleries: example pictures, one a data set.
    """

    table: GroupStats
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    curves: tuple[tuple[str, Picture], ...]
    galleries: tuple[Gallery, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is written.

    Attributes:
        frame: the runs.
        sections: one a group.
        grids: studies of success over a grid of hyperparameters.
        views: summaries over tasks with their table and figures.
        remarks: what was left undone and why.
        command: that makes the report.
    """

    frame: Frame
    sections: tuple[Section, ...]
    grids: Grids
    views: tuple[tuple[View, Table | None, tuple[Picture, ...]], ...]
    remarks: tuple[str, ...]
    command: str

    @property
    def curves_note(self) -> str:
        """Which curves were left out, empty if none."""
        columns = sum(len(section.table.group.columns) for section in self.sections)
        if self.frame.root is None or columns <= curves.MAX_FIGURES:
            return ""
        return (
            f"Curves are drawn for the first {curves.MAX_FIGURES} columns of the report only; "
            "choose others with dataset=... or protocol=... of the report command."
        )

    def facts(self) -> list[tuple[str, str]]:
        """What was run, in a few lines."""
        return facts(self.frame)


def build(frame: Frame, command: str, *, draw: bool = True) -> Report:
    """Evaluate, lay out and draw.

    Args:
        frame: runs of a store or of CSV files; only a store has curves.
        command: printed as the way to make the report again.
        draw: whether to make figures, which take most of the time.

    Raises:
        ReportError: there is no run, or runs must not share a table.
    """
    if not frame.rows:
        raise ReportError("there are no runs to report")
    tables = [analysis.evaluate(group) for group in arrange(frame.rows)]
    views, remarks = analysis.views(tables)
    drawn = _curves(frame if draw else Frame(frame.rows), tables)
    sections = []
    for table in tables:
        pictures = [plots.values(table), plots.cost_and_quality(table)] if draw else []
        sections.append(
            Section(
                table,
                tuple(tables_of(table)),
                tuple(across.findings(table)),
                tuple(picture for picture in pictures if picture),
                tuple(drawn[table.group.slug]),
                gallery.galleries(frame.root if draw else None, table.group),
            )
        )
    summaries = []
    for view in views:
        pictures = [plots.forest(view), critical.critical_difference(view)] if draw else []
        found = tuple(picture for picture in pictures if picture)
        summaries.append((view, across.across_table(view), found))
    grids = build_grids(frame, draw=draw)
    if grids.note:
        remarks.append(grids.note)
    return Report(frame, tuple(sections), grids, tuple(summaries), tuple(remarks), command)


def _curves(frame: Frame, tables: Sequence[GroupStats]) -> dict[str, list[tuple[str, Picture]]]:
    drawn: dict[str, list[tuple[str, Picture]]] = {table.group.slug: [] for table in tables}
    left = curves.MAX_FIGURES
    if frame.root is None:
        return drawn
    for table in tables:
        for column in table.group.columns:
            if left == 0:
                return drawn
            found = curves.read(frame.root, column, table.group.variants)
            pictures = (
                curves.telemetry(table.group, column, found),
                curves.learning(table.group, column, found),
            )
            drawn[table.group.slug] += [(column.label, p) for p in pictures if p]
            left -= any(pictures)
    return drawn


def facts(frame: Frame) -> list[tuple[str, str]]:
    """What was run, in a few lines of (name, text)."""
    rows = frame.rows
    done = [row for row in rows if row.done]
    states: dict[str, int] = {}
    for row in rows:
        states[row.state] = states.get(row.state, 0) + 1
    others = [f"{count} {state}" for state, count in sorted(states.items()) if state != "done"]
    commits = sorted({_commit(row) for row in done if row.commit})
    days = sorted({row.time[:10] for row in done if row.time})
    lines = [
        ("Runs", ", ".join([f"{len(done):,} done", *others])),
        ("Domains", words.listing(_distinct(rows, "domain"))),
        ("Data sets", _short(_distinct(rows, "dataset"))),
        ("Variants", _short(sorted({row.variant for row in rows}, key=variant_order))),
        ("Seeds", words.span(sorted({row.seed for row in rows}))),
        ("Protocols", words.listing([name for name in _distinct(rows, "protocol") if name])),
        ("Data", words.listing(_distinct(done, "kind")) or "none"),
        ("Code", _short(commits, 3) or "commit unknown"),
        ("Dates", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "none"),
    ]
    if frame.problems:
        lines.append(("Unreadable", words.count(len(frame.problems), "run") + ", listed below"))
    return [(name, text) for name, text in lines if text]


def _distinct(rows: Sequence[Row], name: str) -> list[str]:
    return sorted({getattr(row, name) for row in rows})


def _commit(row: Row) -> str:
    return row.commit[:10] + (" with uncommitted changes" if row.dirty else "")


def _short(names: Sequence[str], limit: int = 10) -> str:
    if len(names) <= limit:
        return words.listing(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def text_files(report: Report) -> dict[str, str]:
    """Tables and data, by path inside the report's folder; made from the rows alone."""
    files = {}
    rows = [row for row in report.frame.rows if row.grid is None]
    if rows:
        files = {"results.csv": export.results_csv(rows), "runs.csv": export.runs_csv(rows)}
    studies = [section.study for section in report.grids.studies]
    files |= grid_files(studies, report.grids.probes)
    for table in all_tables(report):
        content = {
            "md": to_markdown(table),
            "tex": to_latex(table),
            "csv": to_csv(table.records, DIGITS),
        }
        files |= {f"tables/{table.name}.{end}": content[end] for end in table.endings}
    files["summary.md"] = summary(report)
    return files


def all_tables(report: Report) -> list[Table]:
    """Every table, in the order of the report."""
    own = [table for section in report.sections for table in section.tables]
    own += report.grids.tables()
    return own + [table for _, table, _ in report.views if table]


def pictures(report: Report) -> list[Picture]:
    """Every figure, in the order of the report."""
    found = []
    for section in report.sections:
        found += [*section.pictures, *(picture for _, picture in section.curves)]
    found += report.grids.pictures()
    return found + [picture for _, _, drawn in report.views for picture in drawn]


def shots(report: Report) -> list[Shot]:
    """Every example picture, in the order of the report."""
    return [shot for section in report.sections for shot in gallery.shots(section.galleries)]


def summary(report: Report) -> str:
    """One Markdown page with facts, findings and the main tables."""
    lines = ["# Attention benchmark report", ""]
    lines += [f"- {name}: {md_line(text)}" for name, text in report.facts()]
    for section in report.sections:
        key = section.table.group.key
        lines += ["", f"## {md_line(f'{key.title()} ({key.details()})')}", ""]
        lines += map(_sentence, section.findings)
        lines += ["", to_markdown(section.tables[0]).rstrip()]
    lines += _summary_of(report.grids)
    for _, table, _ in report.views:
        if table:
            lines += ["", to_markdown(table).rstrip()]
    lines += ["", "## Missing", ""]
    unfilled = missing([section.table for section in report.sections])
    incomplete = report.grids.missing()
    if not unfilled and not incomplete:
        lines.append("Nothing: every variant has every seed.")
    for studied, variant, command in incomplete:
        absent = ", ".join(studied.study.words(variant))
        lines += [md_line(f"{variant} in {studied.study.slug} ({absent}):"), ""]
        lines += [f"    {command}", ""]
    for cell, _, command in unfilled:
        lines += [md_line(f"{cell.variant} on {cell.dataset} ({', '.join(cell.words())}):"), ""]
        lines += [f"    {' '.join(command.splitlines())}", ""]
    for problem in report.frame.problems:
        lines.append(f"- left out: {md_line(f'{problem.path}: {problem.message}')}")
    for remark in report.remarks:
        lines.append(f"- {md_line(remark)}")
    return "\n".join(lines).rstrip() + "\n"


def _summary_of(grids: Grids) -> list[str]:
    lines = []
    for section in grids.main:
        key = section.study.key
        lines += ["", f"## {md_line(f'{key.title()} ({key.details()})')}", ""]
        lines += map(_sentence, section.findings)
        lines += ["", to_markdown(section.tables[0]).rstrip()]
    for family in grids.families:
        lines += ["", to_markdown(family.table).rstrip()]
    return lines


def _sentence(finding: Finding) -> str:
    aside = f" ({finding.aside})" if finding.aside else ""
    return f"- {md_line(f'{finding.text}{aside}: {finding.verdict}')}"
