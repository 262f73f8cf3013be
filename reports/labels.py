"""Names for configurations that would otherwise claim the same cell.

Runs on one data set under the same protocol, recipe and budget may differ in something that
somebody overrode. What differs becomes part of the label: options of the attention tell apart rows
of one variant (`qknorm_ds (init=2)`), everything else names another table (`recipe.optimizer.lr=
0.01`), whichever variants differ in it, so that the variants of one table share everything but the
attention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from reports.rows import Row

_ATTENTION = "attention.options."
_NO_PART_OF_IDENTITY = (
    "seed.", "launcher.", "logger.", "telemetry.", "trainer.",
    "dataset.sha256.", "dataset.source.", "dataset.licence.",  # fields marked `identity=False`
)  # fmt: skip
_STILL_PART_OF_IDENTITY = "trainer.precision"

UNREADABLE = "config.yaml=unset"
"""Setting of runs whose configuration cannot be read: what they compare with is unknown."""

USUAL: Mapping[str, str] = {"recipe.qk_lr_ratio": "1", "recipe.qk_constant_decay": "True"}
"""Settings that go without saying, and name a grid study wherever they have another value.

Keys with `identity="unless default"`: runs from before they existed are stored without them.
"""


def label_configurations(
    rows: list[Row], config_of: Callable[[Row], Mapping[str, Any]]
) -> list[Row]:
    """Rows with `variant` and `setting` filled.

    Args:
        rows: of a whole store.
        config_of: resolved configuration of a row, empty if it cannot be read.
    """
    tables: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        tables[_table(row)].append(row)
    labelled: dict[tuple[str, str, str, str, int], Row] = {}
    for members in tables.values():
        for row in _label_table(members, config_of):
            labelled[row.run_key] = row
    return [labelled[row.run_key] for row in rows]


def _table(row: Row) -> tuple[Any, ...]:
    # Without the model, whose name follows from keys that commands must repeat (`model.readout`).
    return (row.domain, row.protocol, row.protocol_version, row.recipe, row.budget, row.kind)


def _label_table(rows: list[Row], config_of: Callable[[Row], Mapping[str, Any]]) -> list[Row]:
    hashes: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        hashes[(row.dataset, row.fingerprint, row.attention)].setdefault(row.hash, row)
    flat = {
        row.run_key[:4]: _computed(config_of(row))
        for found in hashes.values()
        for row in found.values()
    }
    columns: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    differing: set[str] = set()
    for (dataset, fingerprint, _), found in hashes.items():
        configs = [flat[row.run_key[:4]] for row in found.values()]
        columns[(dataset, fingerprint)] += configs
        differing |= {key for key in _differing(configs) if key.startswith(_ATTENTION)}
    for members in columns.values():
        differing |= {key for key in _differing(members) if not key.startswith("attention.")}
    # Configurations that read alike but hash apart stay apart, under their hash.
    taken: dict[tuple[str, ...], set[str]] = defaultdict(set)
    labels: dict[tuple[str, ...], tuple[str, str, str]] = {}
    for (dataset, fingerprint, attention), found in hashes.items():
        for row in found.values():
            label = labels[row.run_key[:4]] = _label(flat[row.run_key[:4]], differing)
            taken[(dataset, fingerprint, attention, label[0], label[2])].add(row.hash)
    result = []
    for row in rows:
        short, options, setting = labels[row.run_key[:4]]
        if len(taken[(row.dataset, row.fingerprint, row.attention, short, setting)]) > 1:
            short = f"{short}, {row.hash}" if short else row.hash
        variant = f"{row.attention} ({short})" if short else row.attention
        result.append(replace(row, variant=variant, options=options, setting=setting))
    return result


def label_studies(rows: list[Row], config_of: Callable[[Row], Mapping[str, Any]]) -> list[Row]:
    """Rows of grid studies with `variant` and `setting`; what spans a grid is part of neither.

    What differs under one protocol is named under every protocol of the domain, so that studies
    that differ in the protocol alone have the same setting.
    """
    flat: dict[tuple[str, ...], dict[str, str]] = {}
    tables: dict[tuple[Any, ...], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        assert row.grid is not None
        identity = row.run_key[:4]
        if identity not in flat:
            config = _computed(config_of(row))
            flat[identity] = {k: v for k, v in config.items() if k not in row.grid.spec.keys}
        tables[(*_table(row), row.dataset)].add(identity)
    differing: dict[str, set[str]] = defaultdict(set)
    for (domain, *_), members in tables.items():
        keys = _differing(flat[identity] for identity in members)
        differing[domain] |= {key for key in keys if not key.startswith("attention.")}
        for attention in {identity[2] for identity in members}:
            own = _differing(flat[identity] for identity in members if identity[2] == attention)
            differing[domain] |= {key for key in own if key.startswith(_ATTENTION)}
    for (domain, *_), config in flat.items():
        differing[domain] |= {
            k for k, usual in USUAL.items() if neat(config.get(k, usual)) != usual
        }
    labels = {identity: _label(config, differing[identity[0]]) for identity, config in flat.items()}
    result = []
    for row in rows:
        short, options, setting = labels[row.run_key[:4]]
        pairs = (part.partition("=") for part in setting.split(", ") if part)
        setting = ", ".join(f"{k}={neat(v)}" for k, _, v in pairs if neat(v) != USUAL.get(k))
        variant = f"{row.attention} ({short})" if short else row.attention
        result.append(replace(row, variant=variant, options=options, setting=setting))
    return result


def neat(text: str) -> str:
    """One spelling of a number (`0` and `0.0`, `5e-4` and `0.0005`); other text as it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def _differing(configs: Iterable[Mapping[str, str]]) -> set[str]:
    known = [config for config in configs if config]
    keys = set().union(*known)
    return {key for key in keys if len({config.get(key) for config in known}) > 1}


def _label(config: Mapping[str, str], differing: set[str]) -> tuple[str, str, str]:
    """Options in short, options as overrides, all other overrides."""
    if not config:
        return "", "", UNREADABLE
    values = {key: config.get(key, "unset") for key in sorted(differing)}
    options = {
        key.removeprefix(_ATTENTION): value
        for key, value in values.items()
        if key.startswith(_ATTENTION) and key in config  # other variants have other options
    }
    return (
        ", ".join(f"{name}={value}" for name, value in options.items()),
        ", ".join(f"attention.{name}={value}" for name, value in options.items()),
        ", ".join(f"{key}={value}" for key, value in values.items() if _ATTENTION not in key),
    )


def _computed(config: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration computes, by dotted key; nothing where there is no configuration."""
    flat = _flatten(config)
    return flat | {k: neat(flat.get(k, usual)) for k, usual in USUAL.items()} if flat else {}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{name}.")
        elif name == _STILL_PART_OF_IDENTITY or not f"{name}.".startswith(_NO_PART_OF_IDENTITY):
            flat[name] = str(value).replace(", ", ",") if isinstance(value, list) else str(value)
    return flat
