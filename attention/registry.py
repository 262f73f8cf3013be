"""The variants by name. Files in `variants/` are found and imported; nothing else lists them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from . import variants
from .variant import (
    NEEDS_INPUT,
    NEEDS_STATE,
    NEEDS_WEIGHTS,
    PROJECTIONS,
    Context,
    UnsupportedError,
    Variant,
)

_TABLE_ORDER = (
    "standard",
    "quest",
    "qnorm",
    "qknorm",
    "qknorm_hs",
    "qknorm_ds",
    "qknorm_ln",
    "elliptical",
    "elliptical_quest",
)

V = TypeVar("V", bound=type[Variant])


class Entry(NamedTuple):
    """What documentation says of a variant.

    `learned` names the parameters that the variant adds, empty if it adds none.
    """

    name: str
    config: type[Any]
    variant: type[Variant]
    summary: str
    source: str
    capabilities: frozenset[str]
    learned: tuple[str, ...]


class _Registered(NamedTuple):
    config: type[Any]
    variant: type[Variant]
    summary: str
    source: str


_registered: dict[str, _Registered] = {}
_discovered = False


def register(name: str, config: type[Any], *, summary: str, source: str) -> Callable[[V], V]:
    """Class decorator that makes a variant known as `name`.

    Args:
        name: the name everywhere: file, configuration, tables.
        config: dataclass of the options, each with a default.
        summary: one line, the formula.
        source: where the mechanism is published.

    Raises:
        ValueError: the name is taken, or an option has no default.
    """

    def decorate(variant: V) -> V:
        if name in _registered:
            raise ValueError(f"attention={name!r} is registered already; choose another name")
        if not dataclasses.is_dataclass(config):
            raise ValueError(f"attention={name!r}: {config.__name__} must be a dataclass")
        bare = [f.name for f in dataclasses.fields(config) if _has_no_default(f)]
        if bare:
            raise ValueError(f"attention={name!r}: options need a default: {', '.join(bare)}")
        _registered[name] = _Registered(config, variant, summary, source)
        return variant

    return decorate


def unregister(name: str) -> None:
    """Forget a variant that was registered at run time."""
    _lookup(name)
    del _registered[name]


def names() -> tuple[str, ...]:
    """All variants: those of the paper in its order, then the others alphabetically."""
    _discover()
    others = sorted(set(_registered) - set(_TABLE_ORDER))
    return (*(name for name in _TABLE_ORDER if name in _registered), *others)


def config_of(name: str) -> type[Any]:
    """Dataclass of the options of a variant, with defaults.

    Raises:
        ValueError: unknown variant; the message names the nearest one.
    """
    return _lookup(name).config


def entry(name: str) -> Entry:
    """Everything a table of variants shows.

    Raises:
        ValueError: unknown variant.
    """
    found = _lookup(name)
    shapes = dict.fromkeys(PROJECTIONS, (8, 8))
    example = build(name, Context(heads=2, head_dim=4, dim=8, projections=shapes))
    learned = tuple(parameter for parameter, _ in example.named_parameters())
    return Entry(name, *found, found.variant.capabilities, learned)


def configure(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """An instance of :func:`config_of` with some options set.

    Raises:
        ValueError: unknown variant or option, or a value that the option does not take.
    """
    config, options = config_of(name), options or {}
    fields = tuple(field.name for field in dataclasses.fields(config))
    hints = typing.get_type_hints(config)
    for option, value in options.items():
        if option not in fields:
            raise ValueError(
                f"option {option!r} of attention={name!r} is unknown{_hint(option, fields)}"
            )
        if not _fits(value, hints[option]):
            hint = hints[option]
            expected = hint.__name__ if isinstance(hint, type) else str(hint)
            raise ValueError(
                f"option {option}={value!r} of attention={name!r} must be {expected}, "
                f"not {type(value).__name__}"
            )
    return config(**options)


def build(name: str, context: Context, options: Mapping[str, Any] | None = None) -> Variant:
    """A variant for one layer. Leaves torch's global random state as it was.

    Args:
        name: see :func:`names`.
        context: where the layer stands.
        options: values for fields of :func:`config_of`; the others keep their defaults.

    Raises:
        UnsupportedError: the variant cannot honour the context.
        ValueError: unknown variant or option, or a value of the wrong type.
    """
    found = _lookup(name)
    config = configure(name, options)
    _refuse_unsupported(name, found.variant, context)
    devices: list[int] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        # The stream inside must differ from the one that draws the next weights outside.
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), device="cpu")))
        try:
            return found.variant(config, context)
        except UnsupportedError as error:
            raise UnsupportedError(f"attention={name!r}: {error}") from None


def _discover() -> None:
    global _discovered
    if not _discovered:
        # Set only afterwards: a file that fails to import fails every time, not just at first.
        for module in pkgutil.iter_modules(variants.__path__):
            importlib.import_module(f"{variants.__name__}.{module.name}")
        _discovered = True


def _lookup(name: str) -> _Registered:
    _discover()
    if name not in _registered:
        if "+" in name:
            known = tuple(other for other in names() if "+" in other)
            raise ValueError(f"attention={name!r} cannot be combined{_hint(name, known)}")
        raise ValueError(f"attention={name!r} is unknown{_hint(name, names())}")
    return _registered[name]


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.init and field.default is missing and field.default_factory is missing


def _hint(given: str, allowed: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(given), allowed, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{guess} allowed: {', '.join(allowed) or 'none'}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an option: a class, a union or a `Literal`."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if isinstance(value, bool):
        return hint in (bool, Any)
    if hint is float:
        return isinstance(value, int | float)
    return hint is Any or isinstance(value, origin or hint)


def _refuse_unsupported(name: str, variant: type[Variant], context: Context) -> None:
    wanted = set(context.requests or ())
    wanted |= {flag for flag in ("causal", "cross") if getattr(context, flag)}
    missing = sorted(wanted - variant.capabilities)
    if missing:
        raise UnsupportedError(
            f"attention={name!r} cannot honour {', '.join(missing)}, which this model asks for; "
            f"it can: {', '.join(sorted(variant.capabilities)) or 'nothing of the kind'}"
        )
    if NEEDS_STATE in variant.capabilities and context.num_layers > 1 and not context.layer_state:
        raise UnsupportedError(
            f"attention={name!r} needs the values of other layers, but this model does not hand "
            "them on; build the layers with layer_state=True and pass one LayerState() "
            "through each forward pass"
        )
    if NEEDS_INPUT in variant.capabilities and context.dim is None:
        raise UnsupportedError(
            f"attention={name!r} needs the tokens that the queries are projected from; use "
            "MultiHeadAttention, or build the core with dim and pass x to it"
        )
    if NEEDS_WEIGHTS in variant.capabilities and context.projections is None:
        raise UnsupportedError(
            f"attention={name!r} needs the weights of the projections; use MultiHeadAttention, or "
            "build the core with their shapes, projections, and hand them to its variant"
        )
