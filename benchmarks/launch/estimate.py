"""How long the rest will take, from what has been measured so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Kind = tuple[str, ...]
"""What runs of about the same length have in common."""


@dataclass(frozen=True)
class Waiting:
    """A run that has not begun.

    Attributes:
        kind: the runs that it is like.
        estimate: seconds that it was planned for, None if unknown.
    """

    kind: Kind
    estimate: float | None


@dataclass(frozen=True)
class InProgress:
    """A run that is being carried out, or several together.

    Attributes:
        kind: the runs that they are like.
        estimate: seconds that they were planned for in all, None if unknown.
        elapsed: seconds since it began.
        reported: seconds that it says are left, None if it has not said.
        runs: how many there are.
    """

    kind: Kind
    estimate: float | None
    elapsed: float
    reported: float | None
    runs: int = 1


@dataclass(frozen=True)
class Left:
    """Seconds until all is done; a lower bound where nothing is known about some of the runs."""

    seconds: float
    complete: bool = True


class Estimator:
    """Learns by what factor estimates are wrong on this machine, and the mean of each kind."""

    def __init__(self) -> None:
        self._estimated = 0.0
        self._measured_of_estimated = 0.0
        self._measured: dict[Kind, float] = defaultdict(float)
        self._count: dict[Kind, int] = defaultdict(int)

    def record(self, kind: Kind, estimate: float | None, seconds: float) -> None:
        """A run that was planned for `estimate` seconds took so long."""
        self._measured[kind] += seconds
        self._count[kind] += 1
        if estimate is not None:
            self._estimated += estimate
            self._measured_of_estimated += seconds

    def left(
        self, waiting: Iterable[Waiting], running: Iterable[InProgress], workers: float
    ) -> Left | None:
        """How long until all is done, None if nothing is known about any run.

        Args:
            waiting: the runs that have not begun.
            running: the others.
            workers: how many runs at a time, on average.
        """
        running = list(running)
        means = self._means(running)
        rest = [self._expect(run.kind, run.estimate, 1, means) for run in waiting]
        for run in running:
            expected = self._expect(run.kind, run.estimate, run.runs, means)
            if run.reported is not None:
                rest.append(run.reported)
            else:
                rest.append(None if expected is None else max(expected - run.elapsed, 0.0))
        known = [seconds for seconds in rest if seconds is not None]
        if not known:
            return None
        seconds = max(max(known), sum(known) / max(1.0, workers))
        return Left(seconds, complete=len(known) == len(rest))

    def _means(self, running: Iterable[InProgress]) -> dict[Kind, float]:
        """Seconds a run of each kind; before any has ended, what those at work expect."""
        means = {
            run.kind: (run.elapsed + run.reported) / run.runs
            for run in running
            if run.reported is not None
        }
        return means | {kind: self._measured[kind] / count for kind, count in self._count.items()}

    def _expect(
        self, kind: Kind, estimate: float | None, runs: int, means: dict[Kind, float]
    ) -> float | None:
        if estimate is not None:
            factor = self._measured_of_estimated / self._estimated if self._estimated else 1.0
            return estimate * factor
        return means[kind] * runs if kind in means else None
