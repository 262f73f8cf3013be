"""The unit of evaluation: one run as a flat, validated record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SCHEMA = 1

FINAL_STATES = frozenset({"done", "diverged", "skipped"})
STATES = FINAL_STATES | {"planned", "running", "failed", "oom", "timeout", "interrupted"}

PREFERRED_ORDER = (
    "standard", "quest", "qnorm", "qknorm", "qknorm_hs", "qknorm_ds", "qknorm_ln",
    "elliptical", "elliptical_quest",
    "quest+sink", "quest+gated", "quest+softcap", "quest+value_residual",
    "softcap", "qk_clip", "sigma_reparam", "mup", "logn", "ssmax", "softmax1", "sink", "gated",
    "sigmoid", "softpick", "entmax15", "differential", "value_residual",
)  # fmt: skip
BASELINE = "standard"


class ReportError(ValueError):
    """Data that no table may be made of, or a request that cannot be met."""


@dataclass(frozen=True)
class MetricInfo:
    """How a metric reads.

    Attributes:
        higher_is_better: direction; None for readings that are neither good nor bad.
        unit: as printed.
        note: what must be said wherever the number stands.
    """

    higher_is_better: bool | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class GridSpec:
    """What spans a grid study: its result is the share of runs with an outcome.

    Attributes:
        axes: keys of the configuration: columns, rows of the heat map.
        replicates: keys that only repeat a point of the grid, beside the seed.
        outcomes: metrics of which each finished run has one at 100, the others at 0; success first.
    """

    axes: tuple[str, str]
    replicates: tuple[str, ...]
    outcomes: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that place a run, beside its seed."""
        return (*self.axes, *self.replicates)


@dataclass(frozen=True)
class GridPlace:
    """Where a run stands in its grid.

    Attributes:
        spec: of the grid.
        values: of `spec.keys`, as text.
        together: runs that were trained as one batched model, None where that is not known.
    """

    spec: GridSpec
    values: tuple[str, ...] = ()
    together: int | None = None


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        domain: key of the domain.
        dataset: key of the data set.
        attention: registered name of the variant.
        hash: identity of what was computed, without the seed.
        seed: seed of the run.
        state: outcome, one of `STATES`.
        reason: why it ended so, for outcomes other than done.
        model: backbone; for unfinished runs taken from the configuration or from siblings.
        protocol: named protocol.
        protocol_version: its version, 0 where no finished run tells.
        recipe: training recipe.
        budget: training budget.
        kind: kind of data (`real`, `sample`, ...), `unknown` where no finished run tells.
        fingerprint: of the data, empty where no finished run tells.
        variant: label in tables; the attention's name, with options where these tell two
            configurations apart.
        options: the same as overrides on the command line, `attention.key=value, ...`.
        setting: overrides that tell this run's table from another, usually empty.
        primary: name of the primary metric.
        metrics: values by name, finite ones only.
        info: direction, unit and note by metric name.
        selected_epoch: epoch whose weights were kept.
        selection_rule: in words.
        test_size: samples of the test split, None if not stored.
        parameters_total: parameters of the model.
        parameters_attention: the attention's part of them.
        seconds: wall time of the run.
        seconds_per_step: wall time of a training step.
        peak_memory_bytes: highest use on the device.
        device: where it ran.
        threads: CPU threads it had.
        commit: of the code.
        dirty: hash of uncommitted changes, empty without any.
        command: that started it.
        versions: of Python and the main packages, `name version, ...`.
        machine: name of the device or processor.
        time: of the last change of status, ISO 8601.
        path: run directory relative to the store.
        notes: remarks stored with the result.
        grid: place in a grid study, None for runs that are results by themselves.
    """

    domain: str
    dataset: str
    attention: str
    hash: str
    seed: int
    state: str
    reason: str = ""
    model: str = ""
    protocol: str = ""
    protocol_version: int = 0
    recipe: str = ""
    budget: str = ""
    kind: str = "unknown"
    fingerprint: str = ""
    variant: str = ""
    options: str = ""
    setting: str = ""
    primary: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, MetricInfo] = field(default_factory=dict)
    selected_epoch: int | None = None
    selection_rule: str = ""
    test_size: int | None = None
    parameters_total: int | None = None
    parameters_attention: int | None = None
    seconds: float | None = None
    seconds_per_step: float | None = None
    peak_memory_bytes: int | None = None
    device: str = ""
    threads: int | None = None
    commit: str = ""
    dirty: str = ""
    command: str = ""
    versions: str = ""
    machine: str = ""
    time: str = ""
    path: str = ""
    notes: tuple[str, ...] = ()
    grid: GridPlace | None = None

    @property
    def done(self) -> bool:
        """Whether the run has a result."""
        return self.state == "done"

    @property
    def run_key(self) -> tuple[str, str, str, str, int]:
        """Identity in the store."""
        return (self.domain, self.dataset, self.attention, self.hash, self.seed)

    @property
    def cell_key(self) -> tuple[str | int, ...]:
        """What may exist once only."""
        return (
            self.domain, self.dataset, self.model, self.protocol, self.protocol_version,
            self.recipe, self.budget, self.kind, self.fingerprint, self.setting, self.variant,
            self.seed, *(self.grid.values if self.grid else ()),
        )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Something in the store that could not be used.

    Attributes:
        path: relative to the store.
        message: what is wrong, and what became of it.
    """

    path: str
    message: str


def variant_order(name: str) -> tuple[int, str]:
    """Sort key of variants: the baseline first, then the known order, then the alphabet."""
    base = name.split(" ", 1)[0]
    known = PREFERRED_ORDER.index(base) if base in PREFERRED_ORDER else len(PREFERRED_ORDER)
    return known, name


def check_unique(rows: Iterable[Row]) -> None:
    """Refuse two runs that claim the same place.

    Raises:
        ReportError: naming both runs.
    """
    seen: dict[tuple[str | int, ...], Row] = {}
    for row in rows:
        other = seen.setdefault(row.cell_key, row)
        if other is not row:
            raise ReportError(
                f"two runs of {row.variant} on {row.dataset} with seed {row.seed} under the same "
                f"protocol, recipe and budget: {other.path} and {row.path}; a table must not "
                "average them or choose"
            )


def check_unmixed(rows: Iterable[Row]) -> None:
    """Refuse rows that must not share a table.

    Raises:
        ReportError: kinds of data, versions of the protocol, or contents of a data set are mixed.
    """
    rows = list(rows)
    for what, values in (
        ("kinds of data", {row.kind for row in rows}),
        ("protocols", {(row.protocol, row.protocol_version) for row in rows}),
        ("recipes", {row.recipe for row in rows}),
        ("budgets", {row.budget for row in rows}),
        ("domains", {row.domain for row in rows}),
    ):
        if len(values) > 1:
            raise ReportError(f"{what} must not share a table: {sorted(map(str, values))}")
    prints: dict[str, set[str]] = {}
    for row in rows:
        prints.setdefault(row.dataset, set()).add(row.fingerprint)
    for dataset, found in prints.items():
        if len(found) > 1:
            raise ReportError(
                f"runs on {dataset} read different data and must not share a column: "
                f"{sorted(found)}"
            )
