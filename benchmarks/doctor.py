"""`doctor`: is this machine ready to run the suite?"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.paths import cache_dir, data_dir

REQUIRED = ("torch", "lightning", "torchmetrics", "torch-geometric", "sktime", "hydra-core")
LEAST_FREE_BYTES = 2 * 2**30
LEAST_SHM_BYTES = 512 * 2**20


def check(results: Path) -> bool:
    """Print one line a finding.

    Returns:
        Whether nothing stands in the way of a run.
    """
    console = Console(soft_wrap=True, highlight=False)
    ready = True
    for level, message in _findings(results):
        ready = ready and level != "error"
        colour = {"ok": "green", "warning": "yellow", "error": "red"}[level]
        console.print(f"[{colour}]{level:>7}[/{colour}]", end="  ")
        console.print(message, markup=False)
    return ready


def _findings(results: Path) -> Iterator[tuple[str, str]]:
    yield "ok", f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
    for package in REQUIRED:
        try:
            yield "ok", f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield "error", f"{package} is not installed; `make bench` sets everything up"
    yield from _devices()
    for name, folder in (("RESULTS_DIR", results), ("CACHE_DIR", cache_dir())):
        yield _writable(name, folder)
    user = data_dir()
    if user is None:
        yield "ok", "DATA_DIR is not set: data come from installed packages or downloads"
    elif not user.is_dir():
        yield "error", f"DATA_DIR={user} is not a folder"
    else:
        yield "ok", f"DATA_DIR={user}"
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < LEAST_SHM_BYTES:
        yield "warning", f"{shared} is small: loader processes may die with a bus error"


def _devices() -> Iterator[tuple[str, str]]:
    try:
        import torch
    except ImportError as error:
        yield "error", f"torch does not import: {error}"
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield "ok", f"GPU {index}: {torch.cuda.get_device_name(index)}"
    else:
        yield "warning", "no GPU: full-size recipes of the large domains are out of reach"


def _writable(name: str, folder: Path) -> tuple[str, str]:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return "error", f"{name}={folder} cannot be written; set {name} to a folder that can"
    free = shutil.disk_usage(existing).free
    level = "ok" if free > LEAST_FREE_BYTES else "warning"
    return level, f"{name}={folder}, {free / 2**30:.0f} GiB free"
