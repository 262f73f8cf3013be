"""What a domain promises the engine, in plain dataclasses that import no torch.

The engine (`benchmarks`) plans, runs and stores experiments of any domain through these types
alone. A domain implements :class:`domains.base.Domain` and registers itself by living in a folder
of `domains/` (see :mod:`domains.registry`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from domains.common.schedules import SCHEDULES, schedule_factor

if TYPE_CHECKING:
    import numpy as np

DataKind = Literal["real", "sample", "regenerated", "synthetic"]

OPTIMIZERS = ("adam", "adamw", "radam", "sgd")
"""What :func:`domains.base.build_optimizer` can build."""

INTERVALS = ("step", "epoch")
"""What a schedule can count."""


def refuse_unknown(key: str, value: str, allowed: Iterable[str]) -> None:
    """Raise a ValueError that names the key unless its value is allowed."""
    if value not in (names := tuple(allowed)):
        raise ValueError(f"{key}={value!r} is unknown; allowed: {', '.join(names)}")


def refuse_unless(fits: bool, key: str, value: object, allowed: str) -> None:
    """Raise a ValueError that names the key unless its value fits."""
    if not fits:
        raise ValueError(f"{key}={value} must be {allowed}")


class DataUnavailable(RuntimeError):
    """The files of a dataset are not on this machine and cannot be had.

    The message tells which files to put where.
    """


class DataCorrupt(RuntimeError):
    """A file of a dataset is there but damaged, truncated or not what it should be."""


@dataclass(frozen=True)
class Metric:
    """A number that a run reports.

    Attributes:
        name: `split/name`, with the evaluation protocol where several exist (`test/ppl_sliding`).
        higher_is_better: direction.
        unit: unit as printed (`%`, `nats`, or empty).
        note: what a reader must know wherever the number stands (`selected on the test split`).
    """

    name: str
    higher_is_better: bool
    unit: str = ""
    note: str | None = None


@dataclass(frozen=True)
class Protocol:
    """A named way of training, selecting and evaluating.

    Attributes:
        name: key on the command line and in the store.
        version: raised when its results change meaning; part of a run's identity.
        summary: one line for help texts and reports.
        note: caveat printed beside every number obtained with it.
    """

    name: str
    version: int
    summary: str
    note: str | None = None


@dataclass(frozen=True)
class Grid:
    """A study of how often training succeeds, over a grid of hyperparameters.

    Its result is not one run's metric but the share of runs with an outcome, so runs that differ
    in nothing but the keys named here are evaluated together.

    Attributes:
        axes: dotted keys of the configuration that span the grid: columns, rows of its heat map.
        replicates: dotted keys that only repeat a point of the grid, beside the seed.
        outcomes: metrics of which each run has one at 100 and the others at 0; success first.
    """

    axes: tuple[str, str]
    replicates: tuple[str, ...]
    outcomes: tuple[str, ...]


@dataclass(frozen=True)
class Together:
    """Which runs a domain can train as one batched model.

    Attributes:
        keys: dotted keys of the configuration in which they may differ, beside the seed.
        size: most runs in one group; more would not be faster.
        excluded: attention variants whose runs are trained by themselves.
    """

    keys: tuple[str, ...]
    size: int
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class DomainSpec:
    """What planning needs to know of a domain; `SPEC` of its `config.py`, free of torch.

    Attributes:
        schema: dataclasses of the configuration groups `dataset`, `model` and `recipe`.
        protocols: by name, the default first.
        grid: set where success over a grid of hyperparameters is the result.
        together: set where `Domain.train_together` is implemented.
    """

    schema: Mapping[str, type]
    protocols: Mapping[str, Protocol]
    grid: Grid | None = None
    together: Together | None = None


@dataclass(frozen=True)
class Selection:
    """Which epoch's weights a phase ends with.

    Attributes:
        monitor: metric watched, logged once an epoch.
        mode: `max` or `min`.
        patience: epochs without improvement after which training stops; None never stops.
        ties: which of equal epochs wins.
        decimals: places that values are rounded to before they are compared; None compares them
            as they are.
    """

    monitor: str
    mode: Literal["max", "min"]
    patience: int | None = None
    ties: Literal["earlier", "later"] = "earlier"
    decimals: int | None = None

    def describe(self) -> str:
        """The rule in words, as stored with each result."""
        patience = "no early stop" if self.patience is None else f"patience {self.patience}"
        rounded = "" if self.decimals is None else f", rounded to {self.decimals} decimals"
        return f"{self.monitor} {self.mode}{rounded}, {patience}, ties: {self.ties}"


@dataclass(frozen=True)
class Phase:
    """One fit inside a run. Most runs have a single one.

    Attributes:
        name: unique inside the run; names its checkpoints and metrics.
        max_epochs: length of the fit, before early stopping. None: `max_steps` alone bounds it.
        max_steps: optimizer steps; None: `max_epochs` alone bounds it.
        selection: which weights to keep; None keeps the last ones.
        test: whether the kept weights are evaluated on the test split at the end.
        data: handed to `Domain.build_data`, for phases that differ in their data (folds).
    """

    name: str
    max_epochs: int | None
    max_steps: int | None = None
    selection: Selection | None = None
    test: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseResult:
    """What a finished phase leaves behind.

    Attributes:
        name: the phase's name.
        epochs: epochs that were trained.
        steps: optimizer steps that were taken.
        selected_epoch: epoch whose weights were kept, counted from 0.
        selected_step: optimizer steps taken when that epoch ended.
        best: value of the monitored metric at that epoch, None without a selection.
        metrics: metrics of the kept weights (`test/...`), empty when the phase has no test.
        history: per epoch, the values that were logged.
        seconds: wall time of training and validation, without tests at the end.
        train_seconds: wall time spent in training steps.
    """

    name: str
    epochs: int
    steps: int
    selected_epoch: int
    selected_step: int
    best: float | None
    metrics: Mapping[str, float]
    history: tuple[Mapping[str, float], ...]
    seconds: float
    train_seconds: float


@dataclass(frozen=True)
class Example:
    """Something to look at: what a model made of one input of the test split.

    Pictures are (H, W, 3) uint8.

    Attributes:
        name: of the input, the same for all variants.
        given: pictures that no model changes (`input`, `truth`), by label, in order of display.
        prediction: what the model made.
    """

    name: str
    given: Mapping[str, np.ndarray]
    prediction: np.ndarray


@dataclass(frozen=True)
class DataSource:
    """Where a dataset will be read from.

    Attributes:
        kind: see `DataKind`; None if only reading the files can tell.
        description: for people: folder, package or address.
    """

    kind: DataKind | None
    description: str


@dataclass(frozen=True)
class DataInfo:
    """Where the data of a run came from.

    Attributes:
        kind: see `DataKind`; never mixed inside a table.
        version: raised when preparation changes what a model sees.
        fingerprint: `sha256:...` of the content that training and evaluation read.
        source: for people: file, package or generator.
        sizes: what a model needs to be built and a reader to judge (`train`, `test`, `classes`...).
        notes: what preparation had to do (filled values, dropped series...).
    """

    kind: DataKind
    version: str
    fingerprint: str
    source: str
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()


@dataclass
class OptimizerConfig:
    """`optimizer` of a recipe. Betas serve Adam's family, momentum and nesterov serve SGD."""

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        key = "recipe.optimizer"
        refuse_unknown(f"{key}.name", self.name, OPTIMIZERS)
        refuse_unless(0.0 < self.lr < math.inf, f"{key}.lr", self.lr, "a number above 0")
        decay = self.weight_decay
        refuse_unless(0.0 <= decay < math.inf, f"{key}.weight_decay", decay, "a number from 0")
        fit = len(self.betas) == 2 and all(0.0 <= beta < 1.0 for beta in self.betas)
        refuse_unless(fit, f"{key}.betas", list(self.betas), "two numbers from 0 to below 1")
        refuse_unless(0.0 < self.eps < math.inf, f"{key}.eps", self.eps, "a number above 0")


@dataclass
class ScheduleConfig:
    """`schedule` of a recipe: a factor on the learning rate, a function of progress.

    Attributes:
        name: a key of `domains.common.schedules.SCHEDULES`.
        interval: whether the factor changes with every optimizer step or every epoch.
        warmup: units of `interval` over which the factor rises linearly from 0 (exclusive, unless
            the schedule says otherwise).
        final: factor reached at the end, for schedules that decay.
    """

    name: str = "constant"
    interval: str = "step"
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        key = "recipe.schedule"
        refuse_unknown(f"{key}.name", self.name, SCHEDULES)
        refuse_unknown(f"{key}.interval", self.interval, INTERVALS)
        refuse_unless(self.warmup >= 0, f"{key}.warmup", self.warmup, "at least 0")
        refuse_unless(0.0 <= self.final <= 1.0, f"{key}.final", self.final, "from 0 to 1")

    def factor(self, unit: int, total: int) -> float:
        """Factor on the base learning rate after `unit` of `total` units of `interval`."""
        return schedule_factor(self, unit, total)


@dataclass
class RecipeConfig:
    """How a model is trained; the same for every attention variant.

    Attributes:
        name: file name under `conf/recipe/<domain>/`.
        max_epochs: epochs of the published schedule.
        batch_size: training samples a step.
        gradient_clip: global gradient norm, None without clipping.
        optimizer: see `OptimizerConfig`.
        schedule: see `ScheduleConfig`.
        qk_lr_ratio: learning rate of what decides where attention looks (query and key
            projections, learned scales), over that of everything else.
        qk_constant_decay: whether learning rate times weight decay stays the same for both, so
            that the ratio changes the speed of learning alone.
    """

    name: str
    max_epochs: int
    batch_size: int
    gradient_clip: float | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    qk_lr_ratio: float = field(default=1.0, metadata={"identity": "unless default"})
    qk_constant_decay: bool = field(default=True, metadata={"identity": "unless default"})

    def __post_init__(self) -> None:
        ratio = self.qk_lr_ratio
        refuse_unless(0.0 < ratio < math.inf, "recipe.qk_lr_ratio", ratio, "a number above 0")
        for key in ("max_epochs", "batch_size"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"recipe.{key}", value, "at least 1")
        clip = self.gradient_clip
        fit = clip is None or clip > 0.0
        refuse_unless(fit, "recipe.gradient_clip", clip, "above 0, or null for no clipping")

    def steps_in_epoch(self, train: int) -> int:
        """Optimizer steps of an epoch over `train` samples."""
        return math.ceil(train / self.batch_size)

    @property
    def qk_options(self) -> dict[str, Any]:
        """Arguments of `domains.base.parameter_rates` and `build_optimizer`."""
        return {
            "qk_lr_ratio": self.qk_lr_ratio,
            "qk_constant_decay": self.qk_constant_decay,
        }
