"""Writing a report so that a reader sees the old one or the new one, never a half."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from reports import html, report
from reports.grid.export import CURVES, RUNS, STUDIES
from reports.manifest import manifest
from reports.report import Report

TEXT = (
    "results.csv", "runs.csv", STUDIES, RUNS, CURVES, "summary.md", "manifest.json", "report.html",
)  # fmt: skip
FOLDERS = ("tables", "figures")


def contents(made: Report) -> dict[str, bytes]:
    """Every file of a report by its path inside the folder."""
    text = report.text_files(made)
    text["manifest.json"] = manifest(made, tuple(text))
    text["report.html"] = html.page(made)
    files = {name: value.encode() for name, value in text.items()}
    for picture in report.pictures(made):
        files[f"figures/{picture.name}.svg"] = picture.svg
        files[f"figures/{picture.name}.png"] = picture.png
    for shot in report.shots(made):
        files[f"figures/{shot.name}.png"] = shot.png
    return files


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put `files` in the place of `folder`.

    Everything is written beside it first; the exchange is two renames. A folder that holds
    anything but an earlier report is left alone.

    Raises:
        FileExistsError: the folder holds something that no report wrote.
        OSError: the place cannot be written.
    """
    foreign = sorted(_foreign(folder))
    if foreign:
        raise FileExistsError(
            f"{folder} holds {', '.join(foreign[:3])}, which no report wrote; name another folder "
            "with output="
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        new.chmod(0o777 & ~_umask())
        for name, data in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            os.rename(folder, old / folder.name)
            try:
                os.rename(new, folder)
            except OSError:
                os.rename(old / folder.name, folder)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _foreign(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    if not folder.is_dir():
        return [folder.name]
    return [p.name for p in folder.iterdir() if p.name not in (*TEXT, *FOLDERS)]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
