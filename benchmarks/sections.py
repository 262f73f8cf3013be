"""The sections of a configuration that are the engine's own, as dataclasses that check values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.suggest import unknown

ACCELERATORS = ("auto", "cpu", "cuda", "mps")
STRATEGIES = ("ddp", "fsdp")
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
    """Where and in which precision a run is trained.

    Only `precision` is part of its identity: several devices share the batches of one.

    Attributes:
        accelerator: kind of device.
        devices: how many train one run.
        strategy: whether each of several has all weights (`ddp`) or its part of them (`fsdp`).
        precision: as Lightning names it.
        compile: whether the network is compiled.
        checkpoint_every_s: a killed run loses no more work, rounded up to an epoch; a stopped one
            none.
    """

    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "ddp"
    precision: str = "32-true"
    compile: bool = False
    checkpoint_every_s: float = 10.0

    def __post_init__(self) -> None:
        for key, value, allowed in (
            ("trainer.accelerator", self.accelerator, ACCELERATORS),
            ("trainer.strategy", self.strategy, STRATEGIES),
            ("trainer.precision", self.precision, PRECISIONS),
        ):
            if value not in allowed:
                raise unknown(key, value, allowed)
        _at_least(1, {"trainer.devices": self.devices})
        _at_least(0, {"trainer.checkpoint_every_s": self.checkpoint_every_s})
        if self.strategy == "fsdp":
            self._check_sharded()

    def _check_sharded(self) -> None:
        for key, value, fits, allowed in (
            ("devices", self.devices, self.devices > 1, "2 and more"),
            ("compile", self.compile, not self.compile, "False"),
            # Each process would find overflows in its own part, and skip steps by itself.
            ("precision", self.precision, self.precision != "16-mixed", "bf16-mixed, 32-true, ..."),
        ):
            if not fits:
                raise ValueError(
                    f"trainer.{key}={value} cannot go with trainer.strategy='fsdp', which shards "
                    f"the weights over devices; allowed with it: {allowed}; else use "
                    "trainer.strategy=ddp"
                )


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
class SlurmConfig:
    """What jobs on a cluster ask for, and how runs are packed into them.

    Attributes:
        partition: `--partition`; it and the next four: None leaves the choice to the cluster.
        account: `--account`.
        qos: `--qos`.
        constraint: `--constraint`.
        gpu: kind of GPU, `KIND` in `--gpus-per-node=KIND:N`.
        parallelism: jobs of an array at a time.
        max_minutes: no job asks for more time; one that needs more is requeued.
        unknown_minutes: asked for where nothing comparable was measured.
        pack_minutes: short runs share a job until it is expected to take this long.
        mem_gb: memory of a job; None: from what comparable runs took on a CPU, else the cluster's.
        cpus: cores of a job; None: `launcher.threads` for every device.
        signal_s: how long before its end a job is told to stop.
        modules: environment modules to load.
        setup: shell lines that come before Python.
        python: command that starts Python, from inside a container, say; None: this Python.
        wait: whether the command stays until all runs have ended.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpu: str | None = None
    parallelism: int = 32
    max_minutes: int = 1440
    unknown_minutes: int = 240
    pack_minutes: int = 30
    mem_gb: float | None = None
    cpus: int | None = None
    signal_s: int = 120
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    wait: bool = True

    def __post_init__(self) -> None:
        for name in ("parallelism", "max_minutes", "unknown_minutes", "signal_s", "cpus"):
            _at_least(1, {f"launcher.slurm.{name}": getattr(self, name)})
        _at_least(0, {"launcher.slurm.pack_minutes": self.pack_minutes})
        _at_least(0.1, {"launcher.slurm.mem_gb": self.mem_gb})


@dataclass
class LocalConfig:
    """What a pool on one machine may use.

    Attributes:
        devices: numbers of the GPUs, as CUDA_VISIBLE_DEVICES has them; `auto`: all that are seen.
    """

    devices: Any = "auto"

    def __post_init__(self) -> None:
        numbers = self.devices
        fit = isinstance(numbers, list) and len(set(numbers)) == len(numbers) > 0
        if numbers != "auto" and not fit:
            raise ValueError(
                f"launcher.local.devices={numbers!r} must be 'auto' or a list of different "
                "numbers, such as [0,1]"
            )


@dataclass
class LauncherConfig:
    """Who executes the runs."""

    name: str = "local"
    workers: Any = "auto"
    threads: int = 1
    max_attempts: int = 3
    time_limit_s: float | None = None
    together: bool = True
    local: LocalConfig = field(default_factory=LocalConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

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
