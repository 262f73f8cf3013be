"""A process of a run beside rank 0: it computes its part, and writes nothing."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims import Observer
from benchmarks.devices.processes import leave
from benchmarks.runner import execute
from benchmarks.store import Run, RunEnded, RunKey


class Witness(Run):
    """A run as the processes beside rank 0 see it: they read it, and write nothing."""

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Leave it to rank 0."""

    def append_metrics(self, *records: Mapping[str, Any]) -> None:
        """Leave it to rank 0."""


def main() -> None:
    """Carry out what rank 0 says on standard input (:mod:`benchmarks.devices.processes`)."""
    given = json.load(sys.stdin)
    torch.set_num_threads(given["threads"])
    key = RunKey(**given["key"])
    run = Witness(key, Path(given["path"]), Observer())
    signal.signal(signal.SIGTERM, lambda *_: None)  # rank 0 says when to stop
    try:
        execute(run, given["config"], lambda event: None, lambda: None)
    except RunEnded:
        pass  # rank 0 has as well; it may still be saving, and nobody has died
    finally:
        leave()
