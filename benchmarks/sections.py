"""The sections of a configuration that are the engine's own, as dataclasses that check values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.suggest import unknown

ACCELERATORS = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
TELEMETRY_MODES = ("sampled", "exact", "off")


@dataclass
class AttentionConfig:
    """The variant under test; `options` are complete, defaults included."""

    name: str = "standard"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class BudgetConfig:
    """An overlay that shortens the recipe, never a second code path."""

    name: str = "full"
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, {"budget.max_epochs": self.max_epochs})


@dataclass
class TrainerConfig:
    """Where and in which precision a run is trained, on one device.

    Only `precision` is part of its identity.
    """

    accelerator: str = "auto"
    precision: str = "32-true"
    compile: bool = False
    checkpoint_every_s: float = 10.0

    def __post_init__(self) -> None:
        for key, value, allowed in (
            ("trainer.accelerator", self.accelerator, ACCELERATORS),
            ("trainer.precision", self.precision, PRECISIONS),
        ):
            if value not in allowed:
                raise unknown(key, value, allowed)
        _at_least(0, {"trainer.checkpoint_every_s": self.checkpoint_every_s})


@dataclass
class TelemetryConfig:
    """What is read off the attention layers while training; changes no result."""

    mode: str = "sampled"
    every: int = 50
    rows: int = 64

    def __post_init__(self) -> None:
        if self.mode not in TELEMETRY_MODES:
            raise unknown("telemetry.mode", self.mode, TELEMETRY_MODES)
        _at_least(1, {"telemetry.every": self.every, "telemetry.rows": self.rows})


@dataclass
class LoggerConfig:
    """Optional mirror of the metrics; the store is always written."""

    name: str = "none"
    project: str | None = None
    tracking_uri: str | None = None


@dataclass
class LauncherConfig:
    """Who executes the runs."""

    name: str = "local"
    workers: Any = "auto"
    threads: int = 1
    max_attempts: int = 3
    time_limit_s: float | None = None
    together: bool = True

    def __post_init__(self) -> None:
        _at_least(1, {"launcher.threads": self.threads, "launcher.max_attempts": self.max_attempts})
        _at_least(1e-3, {"launcher.time_limit_s": self.time_limit_s})
        if self.workers != "auto" and (type(self.workers) is not int or self.workers < 1):
            raise ValueError(
                f"launcher.workers={self.workers!r} must be 'auto' or a whole number of at least 1"
            )


def _at_least(bound: float, values: Mapping[str, float | None]) -> None:
    for key, value in values.items():
        if value is not None and not value >= bound:
            raise ValueError(f"{key}={value} must be at least {bound}")
