"""The configuration of one run: composed by Hydra from `conf/`, then checked against dataclasses.

Three forms of the same thing: the composed `DictConfig`, the typed :class:`RunConfig` that the
runner and the domains read, and the plain dictionary that is stored and sent to workers.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import operator
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attention import registry
from benchmarks.sections import (
    AttentionConfig,
    BudgetConfig,
    LauncherConfig,
    LoggerConfig,
    TelemetryConfig,
    TrainerConfig,
)
from benchmarks.suggest import did_you_mean, unknown
from domains.registry import spec as domain_spec

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"

GROUPS = ("domain", "dataset", "recipe", "budget", "trainer", "telemetry", "launcher", "logger")
"""Configuration groups that the command line can choose by name."""

NESTED_GROUPS = ("dataset", "recipe")
"""Groups whose files lie in one folder a domain."""


@dataclass(frozen=True)
class RunConfig:
    """Everything one run needs to know.

    `dataset`, `model` and `recipe` are instances of the domain's dataclasses.
    """

    domain: str
    protocol: str
    dataset: Any
    model: Any
    recipe: Any
    attention: AttentionConfig
    budget: BudgetConfig
    trainer: TrainerConfig
    telemetry: TelemetryConfig
    logger: LoggerConfig
    seed: int
    synthetic: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, as stored in `config.yaml` and sent to workers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Check types and keys, and build the typed configuration.

        Raises:
            ValueError: unknown key, wrong type, unknown protocol, variant or option.
        """
        spec = domain_spec(raw["domain"])
        if raw["protocol"] not in spec.protocols:
            raise unknown("protocol", raw["protocol"], spec.protocols)
        return cls(
            domain=raw["domain"],
            protocol=raw["protocol"],
            **{
                key: _typed(spec.schema[key], raw[key], key)
                for key in ("dataset", "model", "recipe")
            },
            attention=attention_config(
                raw["attention"]["name"], raw["attention"].get("options", {})
            ),
            budget=_typed(BudgetConfig, raw["budget"], "budget"),
            trainer=_typed(TrainerConfig, raw["trainer"], "trainer"),
            telemetry=_typed(TelemetryConfig, raw["telemetry"], "telemetry"),
            logger=_typed(LoggerConfig, raw["logger"], "logger"),
            seed=_checked("seed", raw["seed"], int),
            synthetic=_checked("synthetic", raw["synthetic"], bool),
        )


def identity(config: RunConfig, without: Iterable[str] = ()) -> dict[str, Any]:
    """What a run computes, and nothing about where, when or with which seed.

    Fields of the domain's dataclasses with metadata `identity=False` (licence texts, notes) are
    left out; those with `identity="unless default"`, which came later than the first results, are
    part of it where they are set to something else. The dotted keys in `without` are left out too.
    """
    protocol = domain_spec(config.domain).protocols[config.protocol]
    found: dict[str, Any] = {
        "domain": config.domain,
        "protocol": {"name": protocol.name, "version": protocol.version},
        "dataset": _identity_fields(config.dataset),
        "model": _identity_fields(config.model),
        "recipe": _identity_fields(config.recipe),
        "attention": dataclasses.asdict(config.attention),
        "budget": dataclasses.asdict(config.budget),
        "precision": config.trainer.precision,
        "synthetic": config.synthetic,
    }
    for key in without:
        *path, last = key.split(".")
        functools.reduce(operator.getitem, path, found).pop(last, None)
    return found


def hash_of(config: RunConfig) -> str:
    """Twelve hexadecimal digits of the SHA-256 of :func:`identity` in canonical JSON."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def attention_options(name: str) -> tuple[str, ...]:
    """Names of a variant's options."""
    return tuple(f.name for f in dataclasses.fields(registry.config_of(name)))


def choices(group: str, domain: str | None = None) -> tuple[str, ...]:
    """Names that a configuration group offers; nested groups need the domain.

    A leading underscore marks a template that is not a choice of its own. A recipe may be a folder
    with a file for each data set.
    """
    if group == "attention":
        return registry.names()
    folder = CONF_DIR / group / domain if group in NESTED_GROUPS and domain else CONF_DIR / group
    found = folder.glob("[!_]*" if group == "recipe" else "[!_]*.yaml")
    return tuple(sorted(path.stem for path in found))


def default_domain() -> str:
    """The domain that `conf/config.yaml` names."""
    domain: str = _compose(()).domain
    return domain


def compose_run(groups: Mapping[str, str], overrides: Mapping[str, Any]) -> DictConfig:
    """Compose one configuration, without the attention part.

    Args:
        groups: chosen file of each group, by its short name (`dataset: JapaneseVowels`); the
            domain at least.
        overrides: dotted keys and their values, applied last.

    Raises:
        ValueError: a group has no such file, or a key does not exist; with the nearest right one.
    """
    domain = groups["domain"]
    if domain not in choices("domain"):
        raise unknown("domain", domain, choices("domain"))
    arguments = []
    dataset_name = None
    default = _compose((f"domain={domain}",))
    for group, name in {"recipe": default.recipe.name, **groups}.items():
        if group == "dataset" and name not in choices("dataset", domain):
            generic = default.get("generic_dataset")
            known_names = [known.lower() for known in choices("dataset", domain)]
            # Any other name may be right, but not one that is a slip away from a known one.
            slip = get_close_matches(name.lower(), known_names, n=1, cutoff=0.85)
            if generic is None or slip:
                raise unknown("dataset", name, choices("dataset", domain))
            dataset_name, name = name, generic
        elif name not in choices(group, domain):
            raise unknown(group, name, choices(group, domain))
        elif group == "recipe":
            name = _recipe_file(domain, name, groups.get("dataset", default.dataset.name))
        arguments.append(
            f"{group}={domain}/{name}" if group in NESTED_GROUPS else f"{group}={name}"
        )
    config = _compose(tuple(arguments))
    if dataset_name is None and not overrides:
        return config
    config = copy.deepcopy(config)  # the composed one is cached
    if dataset_name is not None:
        config.dataset.name = dataset_name
    known = known_keys(config, domain)
    for key, value in overrides.items():
        if key not in known:
            raise ValueError(
                f"unknown key '{key}'.{did_you_mean(key, known)} "
                f"`python run_all.py inspect domain={domain}` shows all keys."
            )
        if OmegaConf.is_dict(OmegaConf.select(config, key)):
            raise ValueError(f"'{key}' holds several keys; set one of them: {key}.…=…")
        OmegaConf.update(config, key, value, force_add=True)
    return config


def _recipe_file(domain: str, recipe: str, dataset: str) -> str:
    """A recipe's file without suffix: that of the data set, where it has one for each."""
    folder = CONF_DIR / "recipe" / domain / recipe
    if not folder.is_dir():
        return recipe
    if not (folder / f"{dataset}.yaml").is_file():
        offered = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise ValueError(f"recipe={recipe} is for these data sets, not for {dataset}: {offered}")
    return f"{recipe}/{dataset}"


def known_keys(config: DictConfig, domain: str) -> list[str]:
    """Dotted keys that may be overridden: all in the files, and all that have a default."""
    keys = _leaf_keys(config)
    for group, schema in domain_spec(domain).schema.items():
        keys.extend(key for key in _field_keys(schema, f"{group}.") if key not in keys)
    return keys


def _leaf_keys(config: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    if OmegaConf.is_dict(config):
        for key in config:
            keys.append(f"{prefix}{key}")
            keys.extend(_leaf_keys(config._get_node(key), f"{prefix}{key}."))
    return keys


def _field_keys(schema: type, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, hint in typing.get_type_hints(schema).items():
        keys.append(f"{prefix}{name}")
        if dataclasses.is_dataclass(hint):
            keys.extend(_field_keys(hint, f"{prefix}{name}."))  # type: ignore[arg-type]
    return keys


def run_config(composed: DictConfig) -> RunConfig:
    """Type a composed configuration; its variant is `standard`, its seed the composed one.

    Raises:
        ValueError: as :meth:`RunConfig.from_dict`.
    """
    raw = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(raw, dict)
    plain: dict[str, Any] = {str(key): value for key, value in raw.items()}
    return RunConfig.from_dict({**plain, "attention": {"name": "standard"}})


def attention_config(name: str, options: Mapping[str, Any]) -> AttentionConfig:
    """A variant with all its options, defaults filled in.

    Raises:
        ValueError: unknown variant or option, or a value of the wrong type.
    """
    typed = _typed(registry.config_of(name), options, f"attention={name}")
    return AttentionConfig(name, dataclasses.asdict(typed))


def launcher_config(composed: DictConfig) -> LauncherConfig:
    """The launcher's part of a composed configuration."""
    launcher: LauncherConfig = _typed(
        LauncherConfig, OmegaConf.to_container(composed.launcher), "launcher"
    )
    return launcher


@functools.cache
def _compose(arguments: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        try:
            return compose("config", overrides=list(arguments))
        except HydraException as error:
            raise ValueError(f"the configuration in {CONF_DIR} is broken: {error}") from error


_TYPED: dict[tuple[type, str, str], Any] = {}


def _typed(schema: type, raw: Any, where: str) -> Any:
    """Build `schema` from plain values; unknown keys and wrong types are errors.

    Equal values are checked once: it takes milliseconds, and grids have thousands of runs.
    """
    known = (schema, repr(raw), where)
    if known not in _TYPED:
        _TYPED[known] = _checked_against(schema, raw, where)
    return copy.deepcopy(_TYPED[known])


def _checked_against(schema: type, raw: Any, where: str) -> Any:
    if dataclasses.is_dataclass(raw):
        raw = dataclasses.asdict(raw)  # type: ignore[arg-type]  # an instance, never a class
    allowed = [f.name for f in dataclasses.fields(schema)]
    for key in raw:
        if key not in allowed:
            raise ValueError(
                f"unknown key '{key}' in {where}.{did_you_mean(key, allowed)} "
                f"Allowed: {', '.join(allowed) or 'none'}."
            )
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), raw)
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"{where}: {first} (key {error.full_key})") from error


def _checked(key: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{key}={value!r} must be {kind.__name__}")
    return value


def _identity_fields(instance: Any) -> dict[str, Any]:
    return {
        f.name: _plain(getattr(instance, f.name))
        for f in dataclasses.fields(instance)
        if _computes(f, getattr(instance, f.name))
    }


def _computes(known: dataclasses.Field[Any], value: Any) -> bool:
    rule = known.metadata.get("identity", True)
    return value != known.default if rule == "unless default" else bool(rule)


def _plain(value: Any) -> Any:
    return _identity_fields(value) if dataclasses.is_dataclass(value) else value
