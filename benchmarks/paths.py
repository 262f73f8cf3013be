"""The three folders of the suite, each set by an environment variable."""

from __future__ import annotations

import os
from pathlib import Path


def results_dir() -> Path:
    """Runs and reports (`RESULTS_DIR`, default `results`)."""
    return Path(os.environ.get("RESULTS_DIR") or "results").absolute()


def cache_dir() -> Path:
    """Downloads and prepared data (`CACHE_DIR`, default `data`)."""
    return Path(os.environ.get("CACHE_DIR") or "data").absolute()


def data_dir() -> Path | None:
    """The user's own files, only ever read (`DATA_DIR`), or None."""
    folder = os.environ.get("DATA_DIR")
    return Path(folder).absolute() if folder else None
