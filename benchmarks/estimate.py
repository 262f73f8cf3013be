"""What runs will take, from runs that are finished."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.store import RunKey, Store, StoreError


class Estimates:
    """Measured wall times and memory of a store.

    A run of the same cell tells best; failing that, another variant on the same data set with the
    same recipe and budget; failing that, one with another budget, by its seconds an epoch.
    """

    def __init__(self, store: Store) -> None:
        by_cell: dict[tuple[str, ...], list[float]] = defaultdict(list)
        by_task: dict[tuple[str, ...], list[float]] = defaultdict(list)
        by_epoch: dict[tuple[str, ...], list[float]] = defaultdict(list)
        memory: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for run in store.runs():
            try:
                result = run.result()
            except StoreError:  # damaged, or of a newer version: it says nothing here
                continue
            if result is None:
                continue
            key, cost = run.key, result["cost"]
            seconds = float(cost["seconds"])
            by_cell[_cell(key)].append(seconds)
            by_task[(key.domain, key.dataset, result["recipe"], result["budget"])].append(seconds)
            if cost.get("epochs"):
                pace = seconds / cost["epochs"]
                by_epoch[(key.domain, key.dataset, result["recipe"], _kind(result))].append(pace)
            if cost.get("device") == "cpu" and cost.get("peak_memory_bytes"):
                memory[(key.domain, key.dataset)].append(int(cost["peak_memory_bytes"]))
        self._by_cell = {cell: median(found) for cell, found in by_cell.items()}
        self._by_task = {task: median(found) for task, found in by_task.items()}
        self._by_epoch = {task: median(found) for task, found in by_epoch.items()}
        self._memory = {task: max(found) for task, found in memory.items()}

    def seconds(self, key: RunKey, config: RunConfig) -> float | None:
        """Expected wall time of a run, None if nothing comparable was ever run."""
        recipe, budget = config.recipe.name, config.budget
        found = self._by_cell.get(_cell(key))
        if found is None:
            found = self._by_task.get((key.domain, key.dataset, recipe, budget.name))
        if found is None:
            kind = "synthetic" if config.synthetic else "real"
            pace = self._by_epoch.get((key.domain, key.dataset, recipe, kind))
            epochs = min(config.recipe.max_epochs, budget.max_epochs or config.recipe.max_epochs)
            found = None if pace is None else pace * epochs
        return found

    def memory(self, key: RunKey) -> int | None:
        """Bytes that a process took at most on this data set, None if no CPU run has told."""
        return self._memory.get((key.domain, key.dataset))


def _cell(key: RunKey) -> tuple[str, ...]:
    return key.domain, key.dataset, key.attention, key.hash


def _kind(result: dict[str, Any]) -> str:
    """Whether the data were made up: such runs are shorter."""
    return "synthetic" if result["data"]["kind"] == "synthetic" else "real"


def in_words(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
