"""`manifest.json`: which runs each file of a report is made of, with what identifies them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from reports import words
from reports.fingerprint import fingerprint
from reports.gallery import shots
from reports.plots import Picture
from reports.report import Report
from reports.rows import Row
from reports.table import Table


def manifest(report: Report, text_files: Iterable[str]) -> str:
    """The manifest.

    Runs of a grid are many: there the seeds of one configuration are one entry, and
    `grid_runs.csv` tells the rest.

    Args:
        report: to describe.
        text_files: written with it.
    """
    sets: dict[str, list[str]] = {}
    files = {name: "all" for name in text_files if "/" not in name} | {"report.html": "all"}
    for section in report.sections:
        group = section.table.group
        sets[group.slug] = [row.path for row in group.rows]
        drawn = [*section.pictures, *(picture for _, picture in section.curves)]
        files |= _files(group.slug, section.tables, drawn)
        files |= {f"figures/{shot.name}.png": group.slug for shot in shots(section.galleries)}
    for studied in report.grids.studies:
        slug = studied.study.slug
        sets[slug] = list(_configurations(studied.study.rows))
        files |= _files(slug, studied.tables, studied.pictures)
    for one in report.grids.families:
        slug = one.family.slug
        sets[slug] = [f for s in one.family.studies.values() for f in _configurations(s.rows)]
        files |= _files(slug, [one.table], [one.picture] if one.picture else [])
    for view, summed, drawn_ in report.views:
        name = f"{view.slug} (all tasks)"
        sets[name] = [row.path for table in view.tables for row in table.group.rows]
        files |= _files(name, [summed] if summed else [], drawn_)
    value = {
        "schema": 1,
        "command": report.command,
        "inputs": fingerprint(report.frame, report.command),
        "files": files,
        "run_sets": {"all": "every run below", **sets},
        "runs": {
            row.path: {
                "state": row.state,
                "hash": row.hash,
                "fingerprint": row.fingerprint,
                "commit": row.commit,
                "dirty": row.dirty,
                "command": row.command,
            }
            for row in report.frame.rows
            if row.grid is None
        }
        | _configurations(row for row in report.frame.rows if row.grid is not None),
        "left_out": [{"path": p.path, "message": p.message} for p in report.frame.problems],
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _files(runs: str, tables: Iterable[Table], pictures: Iterable[Picture]) -> dict[str, str]:
    made = {f"tables/{table.name}.{end}": runs for table in tables for end in table.endings}
    return made | {f"figures/{p.name}.{end}": runs for p in pictures for end in ("svg", "png")}


def _configurations(rows: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Runs of a grid by their folder without the seed."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.path.rpartition("/")[0]].append(row)
    return {
        folder: {
            "state": ", ".join(sorted({row.state for row in members})),
            "seeds": words.span([row.seed for row in members]),
        }
        for folder, members in found.items()
    }
