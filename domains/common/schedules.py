"""Learning-rate schedules as pure functions of progress, so that they can be printed and tested."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the contract reads the names of the schedules from here
    from domains.contract import ScheduleConfig


def _constant(progress: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "cosine_from_start": _cosine,
}
"""Shapes from 1 at progress 0 to their end at progress 1; `final` and `warmup` apply to all."""

FROM_START = frozenset({"cosine_from_start"})
"""Progress counts from the first unit instead of from the warm-up's end, where the factor drops to
its curve; the warm-up itself starts at 0. The form of IDSIA/lmtool-fwp (`src/train.py`)."""


def schedule_factor(config: ScheduleConfig, unit: int, total: int) -> float:
    """Factor on the base learning rate.

    Args:
        config: shape, warm-up and final factor.
        unit: optimizer steps or epochs (`config.interval`) that are over, from 0.
        total: length of the whole fit in the same unit.

    Raises:
        ValueError: unknown schedule name.
    """
    if config.name not in SCHEDULES:
        raise ValueError(
            f"recipe.schedule.name={config.name!r} is unknown; allowed: {', '.join(SCHEDULES)}"
        )
    from_start = config.name in FROM_START
    if unit < config.warmup:
        return unit / config.warmup if from_start else (unit + 1) / (config.warmup + 1)
    first = 0 if from_start else config.warmup
    progress = min(1.0, (unit - first) / max(1, total - first))
    shape = SCHEDULES[config.name](progress)
    return config.final + (1.0 - config.final) * shape if config.name != "constant" else 1.0
