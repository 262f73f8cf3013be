"""How long the rest will take, from what has been measured so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class InProgress:
    """A run that is being carried out, or several together.

    Attributes:
        estimate: seconds that they were planned for in all, None if unknown.
        elapsed: seconds since it began.
        reported: seconds that it says are left, None if it has not said.
        runs: how many there are.
    """

    estimate: float | None
    elapsed: float
    reported: float | None
    runs: int = 1


class Estimator:
    """Learns by what factor estimates are wrong on this machine, and the mean without estimates."""

    def __init__(self) -> None:
        self._estimated = 0.0
        self._measured_of_estimated = 0.0
        self._measured = 0.0
        self._count = 0

    def record(self, estimate: float | None, seconds: float) -> None:
        """A run that was planned for `estimate` seconds took so long."""
        self._measured += seconds
        self._count += 1
        if estimate is not None:
            self._estimated += estimate
            self._measured_of_estimated += seconds

    def expect(self, estimate: float | None) -> float | None:
        """Seconds that a run will take, None if nothing is known."""
        if estimate is not None:
            factor = self._measured_of_estimated / self._estimated if self._estimated else 1.0
            return estimate * factor
        return self._measured / self._count if self._count else None

    def left(
        self, waiting: Iterable[float | None], running: Iterable[InProgress], workers: float
    ) -> float | None:
        """Seconds until all is done, None if nothing is known about some run.

        Args:
            waiting: estimates of the runs that have not begun.
            running: the others.
            workers: how many runs at a time, on average.
        """
        rest: list[float | None] = [self.expect(estimate) for estimate in waiting]
        for run in running:
            expected = self.expect(run.estimate)
            if expected is not None and run.estimate is None:
                expected *= run.runs
            if run.reported is not None:
                rest.append(run.reported)
            else:
                rest.append(None if expected is None else max(expected - run.elapsed, 0.0))
        known = [seconds for seconds in rest if seconds is not None]
        if not known or len(known) < len(rest):
            return None
        return max(max(known), sum(known) / max(1.0, workers))
