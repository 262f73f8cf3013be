"""How long runs will take, from runs that are finished."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from benchmarks.store import RunKey, Store, StoreError


class Estimates:
    """Measured wall times of a store.

    A run of the same cell tells best; failing that, another variant on the same data set with the
    same recipe and budget.
    """

    def __init__(self, store: Store) -> None:
        by_cell: dict[tuple[str, ...], list[float]] = defaultdict(list)
        by_task: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for run in store.runs():
            try:
                result = run.result()
            except StoreError:  # damaged, or of a newer version: it says nothing here
                continue
            if result is None:
                continue
            key = run.key
            seconds = float(result["cost"]["seconds"])
            by_cell[(key.domain, key.dataset, key.attention, key.hash)].append(seconds)
            task = (key.domain, key.dataset, result["recipe"], result["budget"])
            by_task[task].append(seconds)
        self._by_cell = {cell: median(found) for cell, found in by_cell.items()}
        self._by_task = {task: median(found) for task, found in by_task.items()}

    def seconds(self, key: RunKey, recipe: str, budget: str) -> float | None:
        """Expected wall time of a run, None if nothing comparable was ever run."""
        found = self._by_cell.get((key.domain, key.dataset, key.attention, key.hash))
        if found is None:
            found = self._by_task.get((key.domain, key.dataset, recipe, budget))
        return found


def in_words(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
