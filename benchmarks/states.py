"""The words of the store: a run's identity, its states and how they follow one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA = 1
FINAL = ("done", "diverged", "skipped")
RUNNABLE = ("planned", "running", "interrupted", "failed", "oom", "timeout")
OUTCOMES = ("failed", "oom", "timeout", *FINAL)
STATES = (*RUNNABLE, *FINAL)
_STARTS = frozenset({"running", "skipped", "failed", "timeout", "interrupted"})
TRANSITIONS: Mapping[str, frozenset[str]] = {
    "running": frozenset(STATES) - {"planned"},
    **{state: _STARTS for state in RUNNABLE if state != "running"},
    **{state: frozenset() for state in FINAL},
}

WORK = ("checkpoints", "phases.json", "metrics.jsonl", "examples.json", "examples", "result.json")
"""What attempts leave in a run's folder; set aside when it starts from the beginning."""


class RunEnded(Exception):
    """Raised by an executor to end its run in a state other than `done`.

    Attributes:
        state: the state the run ends in.
        reason: one line for people.
        details: more, for the status file.
    """

    def __init__(self, state: str, reason: str | None = None, **details: Any) -> None:
        if state not in set(STATES) - {"planned", "running", "done"}:
            raise ValueError(f"a run cannot be ended as '{state}'")
        super().__init__(f"{state}: {reason}" if reason else state)
        self.state = state
        self.reason = reason
        self.details = details


@dataclass(frozen=True, order=True)
class RunKey:
    """Identity of a run, and its place in the store."""

    domain: str
    dataset: str
    attention: str
    hash: str
    seed: int

    def __post_init__(self) -> None:
        for part in (self.domain, self.dataset, self.attention, self.hash):
            if not part or part.startswith(".") or "/" in part:
                raise ValueError(f"'{part}' cannot be part of a run's name: it names a folder")

    def path(self, root: Path) -> Path:
        """The run's folder in the store at `root`."""
        return root / self.domain / self.dataset / self.attention / self.hash / f"seed={self.seed}"

    def __str__(self) -> str:
        return f"{self.domain}/{self.dataset}/{self.attention}/{self.hash}/seed={self.seed}"


def make_status(
    state: str, reason: str | None, time: str | None, attempts: int, details: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of `status.json`."""
    return {
        "schema": SCHEMA,
        "state": state,
        "reason": reason,
        "time": time,
        "attempts": attempts,
        "details": dict(details),
    }


def now() -> str:
    """Wall-clock time for people, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
