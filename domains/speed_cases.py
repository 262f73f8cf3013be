"""What `make speed` measures: what a domain offers in its `speed.py`, and the engine in its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Step = Callable[[], object]


@dataclass(frozen=True)
class SpeedCase:
    """Two ways of doing the same work, to be measured against one another (`make speed`).

    A domain offers its cases in `speed.py` beside `domain.py`, as a function
    `cases(*, device: str, quick: bool)` that returns an iterable of them. `baseline` and
    `candidate` build what they need, with equal sizes and equal input, and return the step to be
    timed: a callable without arguments that may be called any number of times and leaves nothing
    behind but gradients and optimizer state.

    Attributes:
        group: heading of the table that the case belongs to.
        name: what is measured, unique in its group.
        baseline: makes the step of the reference point.
        candidate: makes our step.
        against: what the reference point is, in words.
        time_target: largest ratio candidate / baseline of the times that is wanted.
        memory_target: the same of the peak memory.
        memory: whether peak memory is measured at all.
        tokens: that a step goes through, where tokens a second are wanted too.
    """

    group: str
    name: str
    baseline: Callable[[], Callable[[], object]]
    candidate: Callable[[], Callable[[], object]]
    against: str
    time_target: float | None = None
    memory_target: float | None = None
    memory: bool = True
    tokens: int | None = None


class ActionFailedError(RuntimeError):
    """What should be measured ended with an error."""


@dataclass(frozen=True)
class TimeLimit:
    """An action timed by itself, once, as it is the first time: what it costs, and may cost.

    Attributes:
        group: heading of the table that the case belongs to.
        name: what is measured, unique in its group.
        prepare: sets the action up, outside the measured time, and returns it; it may raise
            :class:`ActionFailedError`.
        limit: seconds wanted at most, if anybody said.
    """

    group: str
    name: str
    prepare: Callable[[], Step]
    limit: float | None = None
