"""Learning-rate schedules as pure functions of progress, so that they can be printed and tested."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Settings(Protocol):
    """What a schedule needs to know: see :class:`domains.contract.ScheduleConfig`."""

    name: str
    warmup: int
    final: float


def _constant(progress: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _polynomial(progress: float) -> float:
    return (1.0 - progress) ** 0.9


def _rise(unit: int, warmup: int) -> float:
    return (unit + 1) / (warmup + 1)


def _rise_from_zero(unit: int, warmup: int) -> float:
    return unit / warmup


def _rise_from_almost_zero(unit: int, warmup: int) -> float:
    return max(1e-6, unit / warmup)


class Schedule(NamedTuple):
    """A schedule in two parts.

    Attributes:
        fall: from 1 at progress 0 to the end at progress 1; `final` applies to it.
        rise: from (unit, warmup) to the factor while the unit lies in the warm-up.
        from_start: whether progress counts from the first unit instead of from the warm-up's end,
            where the factor then drops to its curve.
    """

    fall: Callable[[float], float]
    rise: Callable[[int, int], float] = _rise
    from_start: bool = False


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(_constant),
    "cosine": Schedule(_cosine),
    # rampasek/GraphGPS at 2801570, `graphgps/optimizer/extra_optimizers.py`: the warm-up starts
    # with the first unit at (almost) zero, so that one unit less is trained.
    "cosine_from_zero": Schedule(_cosine, _rise_from_almost_zero),
    # rstrudel/segmenter at 20d1bfa, `segm/optim/scheduler.py`.
    "polynomial": Schedule(_polynomial),
    # IDSIA/lmtool-fwp, `src/train.py`.
    "cosine_from_start": Schedule(_cosine, _rise_from_zero, from_start=True),
}


def schedule_factor(config: Settings, unit: int, total: int) -> float:
    """Factor on the base learning rate.

    Args:
        config: shape, warm-up and final factor.
        unit: optimizer steps or epochs, as `interval` says, that are over, from 0.
        total: length of the whole fit in the same unit.

    Raises:
        ValueError: unknown schedule name.
    """
    if config.name not in SCHEDULES:
        raise ValueError(
            f"recipe.schedule.name={config.name!r} is unknown; allowed: {', '.join(SCHEDULES)}"
        )
    schedule = SCHEDULES[config.name]
    if unit < config.warmup:
        return schedule.rise(unit, config.warmup)
    first = 0 if schedule.from_start else config.warmup
    progress = min(1.0, (unit - first) / max(1, total - first))
    shape = schedule.fall(progress)
    return config.final + (1.0 - config.final) * shape if config.name != "constant" else 1.0
