"""From a request on the command line to the list of runs it stands for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException

from attention import registry
from benchmarks import config as configuration
from benchmarks.config import CONF_DIR, GROUPS, RunConfig
from benchmarks.sections import LauncherConfig
from benchmarks.store import FINAL, STATES, CorruptFileError, Run, RunKey, Store
from benchmarks.suggest import did_you_mean, unknown
from domains.registry import names as domain_names


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        suite: name of a file in `conf/suite`, or None.
        values: all other keys, each with the list of values asked for (one, unless swept).
        seeds: number of seeds, counted from 0, or None.
        retry: final states whose runs are asked for again.
    """

    suite: str | None = None
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: int | None = None
    retry: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One run of a plan."""

    key: RunKey
    config: RunConfig
    launcher: LauncherConfig

    @property
    def label(self) -> str:
        """Short name for displays."""
        return f"{self.key.dataset} · {self.key.attention} · seed {self.key.seed}"


def parse(arguments: Sequence[str]) -> Request:
    """Read `key=value` arguments; a comma separates values to sweep over.

    Raises:
        ValueError: an argument that is not `key=value`, or a value that cannot be read.
    """
    for argument in arguments:
        if "=" not in argument:
            raise ValueError(f"'{argument}' is not of the form key=value")
    try:
        parsed = OverridesParser.create().parse_overrides(list(arguments))
    except HydraException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    values: dict[str, list[Any]] = {}
    for override in parsed:
        key = override.key_or_group
        if override.type != OverrideType.CHANGE:
            raise ValueError(f"'{override.input_line}': write key=value, without + or ~")
        if override.is_sweep_override():
            values[key] = list(override.sweep_iterator())
        else:
            values[key] = [override.value()]
    for key in {"domain", "attention", "protocol", *GROUPS} & values.keys():
        for value in values[key]:
            if not isinstance(value, str):
                raise ValueError(f"{key}={value!r} must be a name; a comma separates several")
    for value in values.get("seed", []):
        if type(value) is not int or value < 0:
            raise ValueError(f"seed={value!r} must be a whole number of at least 0")
    suite = _single(values, "suite")
    seeds = _single(values, "seeds")
    retry = values.pop("retry", [])
    for state in retry:
        if state not in FINAL:
            raise unknown("final state", str(state), FINAL)
    if seeds is not None and (type(seeds) is not int or seeds < 1):
        raise ValueError(f"seeds={seeds!r} must be a positive number; for a given seed use seed=…")
    return Request(
        suite=None if suite is None else str(suite),
        values=values,
        seeds=seeds,
        retry=tuple(str(state) for state in retry),
    )


def expand(request: Request) -> list[Planned]:
    """All runs of a request, in the order in which they are worth having: seed by seed.

    Raises:
        ValueError: unknown suite, group choice, key, variant or option.
    """
    runs: dict[RunKey, Planned] = {}
    for entry in _entries(request):
        for planned in _expand_entry(entry):
            if runs.setdefault(planned.key, planned) != planned:
                raise ValueError(
                    f"{planned.key} is asked for twice, in ways that compute the same: keys that "
                    "change no number (trainer, telemetry, launcher, logger) take one value"
                )
    return sorted(runs.values(), key=lambda planned: planned.key.seed)


def pending(runs: Sequence[Planned], store: Store, retry: Sequence[str] = ()) -> list[Planned]:
    """The runs without a final outcome, or with one that was asked for again."""
    states = wanted(retry)
    return [planned for planned in runs if state_of(store.run(planned.key)) in states]


def wanted(retry: Sequence[str] = ()) -> frozenset[str]:
    """States of runs that are still to be carried out."""
    return frozenset({*STATES} - {*FINAL} | {*retry})


def state_of(run: Run) -> str:
    """State of a run; one with a damaged file will be run again, so it counts as planned."""
    try:
        run.result()  # a run that is done without a readable result is not
        return str(run.status()["state"])
    except CorruptFileError:
        return "planned"


def _entries(request: Request) -> Iterator[dict[str, Any]]:
    """Axes of each part of the request: group and key names to lists of values."""
    asked = dict(request.values)
    parts: list[dict[str, Any]] = [{}]
    if request.suite is not None:
        if request.suite not in configuration.choices("suite"):
            raise unknown("suite", request.suite, configuration.choices("suite"))
        with open(CONF_DIR / "suite" / f"{request.suite}.yaml", encoding="utf-8") as file:
            parts = yaml.safe_load(file)["runs"]
    for part in parts:
        axes: dict[str, Any] = {k: _as_list(v) for k, v in part.get("overrides", {}).items()}
        axes.update({k: _as_list(v) for k, v in part.items() if k not in ("overrides", "seeds")})
        axes.update(asked)
        if "seed" in asked and request.seeds is not None:
            raise ValueError("give either seeds=<how many> or seed=<which>, not both")
        seeds = request.seeds if request.seeds is not None else part.get("seeds")
        domains = axes.pop("domain", None) or [_domain_of(axes.get("dataset", []))]
        for domain in domain_names() if domains == ["all"] else domains:
            yield _with_bench_defaults({"domain": domain, **axes}, seeds)


def _domain_of(datasets: Sequence[str]) -> str:
    """The domain that has a file for one of the data sets, else the configured default."""
    for domain in domain_names():
        if set(datasets) & set(configuration.choices("dataset", domain)):
            return domain
    return configuration.default_domain()


def _with_bench_defaults(entry: dict[str, Any], seeds: int | None) -> dict[str, Any]:
    """Fill in what the domain compares when nothing else is asked for.

    `bench.sweep` holds the axes of its study: a request that names a data set wants single runs.
    """
    domain = entry["domain"]
    composed = configuration.compose_run({"domain": domain}, {})
    bench = composed.bench
    whole_domain = entry.get("dataset") is None
    if whole_domain:
        entry["dataset"] = list(bench.datasets)
    elif entry["dataset"] == ["default"]:
        entry["dataset"] = [composed.dataset.name]
    if entry.get("attention") is None:
        entry["attention"] = list(bench.attention)
    elif entry["attention"] == ["all"]:
        entry["attention"] = list(registry.names())
    if whole_domain:
        for key, values in bench.get("sweep", {}).items():
            entry.setdefault(key, list(values))
    if "seed" not in entry:
        entry["seed"] = list(range(bench.seeds if seeds is None else seeds))
    return entry


def _expand_entry(entry: Mapping[str, Any]) -> Iterator[Planned]:
    domain = entry["domain"]
    options = _attention_options(entry)
    variants = [
        configuration.attention_config(name, chosen)
        for name in entry["attention"]
        for chosen in _product(options[name])
    ]
    axes = {
        key: values
        for key, values in entry.items()
        if key not in ("domain", "attention", "seed") and not key.startswith("attention.")
    }
    for point in _product(axes):
        groups = {"domain": domain} | {k: str(v) for k, v in point.items() if k in GROUPS}
        overrides = {k: v for k, v in point.items() if k not in GROUPS}
        composed = configuration.compose_run(groups, overrides)
        launcher = configuration.launcher_config(composed)
        base = configuration.run_config(composed)
        for attention in variants:
            cell = dataclasses.replace(base, attention=attention)
            digest = configuration.hash_of(cell)
            for seed in map(int, entry["seed"]):
                key = RunKey(domain, base.dataset.name, attention.name, digest, seed)
                yield Planned(key, dataclasses.replace(cell, seed=seed), launcher)


def _attention_options(entry: Mapping[str, Any]) -> dict[str, dict[str, Sequence[Any]]]:
    """For each variant asked for, the option values asked for.

    An option applies to those variants of the request that have it.

    Raises:
        ValueError: unknown variant, or an option that none of the variants has.
    """
    own = {name: configuration.attention_options(name) for name in entry["attention"]}
    chosen: dict[str, dict[str, Sequence[Any]]] = {name: {} for name in own}
    for key, values in entry.items():
        if not key.startswith("attention."):
            continue
        option = key.removeprefix("attention.")
        takers = [name for name, allowed in own.items() if option in allowed]
        if not takers:
            known = sorted({o for allowed in own.values() for o in allowed})
            raise ValueError(
                f"unknown key '{key}'.{did_you_mean(key, [f'attention.{o}' for o in known])} "
                f"Options of {', '.join(own)}: {', '.join(known) or 'none'}."
            )
        for name in takers:
            chosen[name][option] = values
    return chosen


def _product(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _single(values: dict[str, list[Any]], key: str) -> Any:
    found = values.pop(key, None)
    if found is None:
        return None
    if len(found) != 1:
        raise ValueError(f"{key} takes one value, got {found}")
    return found[0]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
