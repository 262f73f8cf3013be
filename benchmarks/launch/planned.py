"""What a launcher is given and what it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.states import RunKey


class LaunchError(RuntimeError):
    """Workers cannot be started; the message says why."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to bring to an end.

    Attributes:
        key: its identity.
        config: its resolved configuration.
        estimate: seconds it is expected to take, None if unknown.
        group: runs with the same name here are trained together; None: by itself.
        devices: how many it needs at a time.
        memory: bytes that one process of it is expected to take, None if unknown.
        attempts: how many there had been when it was asked for; None: as many as the store tells.
    """

    key: RunKey
    config: dict[str, Any]
    estimate: float | None = None
    group: str | None = None
    devices: int = 1
    memory: int | None = None
    attempts: int | None = None

    @property
    def kind(self) -> tuple[str, ...]:
        """Runs of this kind take about equally long."""
        budget = (self.config.get("budget") or {}).get("name", "")
        return self.key.domain, self.key.dataset, budget


@dataclass(frozen=True)
class Summary:
    """What became of the runs asked for, whoever carried them out.

    Attributes:
        states: state of each run.
        reasons: why, for those that have a reason.
        executed: how many runs this launcher brought to their state; the rest was found so.
        seconds: how long it worked.
        interrupted: whether it was asked to stop before all had ended.
    """

    states: Mapping[RunKey, str]
    reasons: Mapping[RunKey, str]
    executed: int
    seconds: float
    interrupted: bool

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs by state."""
        return dict(Counter(self.states.values()))


def labels(keys: Iterable[RunKey]) -> dict[RunKey, str]:
    """Short unique names for people: `JapaneseVowels · quest · seed 2`."""
    short = {key: f"{key.dataset} · {key.attention} · seed {key.seed}" for key in keys}
    count = Counter(short.values())
    return {
        key: f"{label} · {key.hash[:6]}" if count[label] > 1 else label
        for key, label in short.items()
    }
