"""Whether a report is still that of the store: equal runs and equal code make equal files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from reports.export import results_csv, runs_csv
from reports.frame import Frame

_SOURCES = (".py", ".j2", ".csv")


def fingerprint(frame: Frame, command: str) -> str:
    """Digest of everything that a report is made of: runs, problems, command, this package."""
    digest = hashlib.sha256()
    problems = [f"{problem.path}: {problem.message}" for problem in frame.problems]
    places = [f"{row.path} {row.grid}" for row in frame.rows if row.grid]
    tables = (runs_csv(frame.rows), results_csv(frame.rows))
    for text in (command, *problems, *places, *tables):
        digest.update(text.encode() + b"\0")
    package = Path(__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in _SOURCES and "examples" not in path.parts:
            digest.update(path.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()}"


def is_current(folder: Path, frame: Frame, command: str) -> bool:
    """Whether the report in `folder` is what would be written now."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest.get("inputs") == fingerprint(frame, command))
