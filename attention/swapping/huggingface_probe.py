"""What a model of transformers does in its attentions, found out by calling it.

That a model accepts a function for its attentions does not say that it calls it. So a function
that listens is called instead, with a small made-up input, and tells modules, shapes and extras.
Each module is then called with its input scaled: where queries or keys do not follow linearly,
the module normalises or clips them. This works for untrained weights and whatever the names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..variant import UnsupportedError

PROBE = "attention_probe"
NORM = "normalised or clipped queries and keys"
CAP = "a cap on its scores"
SINK = "a sink"
NORMS = (
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "query_layernorm",
    "key_layernorm",
    "qk_norm",
)
"""Names under which modules that normalise queries and keys stand in transformers."""

STATES = ("hidden_states", "key_value_states", "encoder_hidden_states")
"""Arguments of attention modules that queries and keys are projected from."""

TOKENS, TARGETS = 7, 5
"""Lengths of a made-up input: they differ, so that cross-attention shows."""

FACTOR = 64.0
"""Large enough that a clip at a usual bound and a norm with a usual epsilon show."""

TOLERANCE = 0.1
"""Deviation from linearity that rounding in half precision stays below."""


@dataclass
class Seen:
    """An attention module, as it was called."""

    module: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    dim: int
    causal: bool
    cross: bool
    mechanisms: set[str] = field(default_factory=set)

    @property
    def norms(self) -> list[nn.Module]:
        """Its modules that normalise queries and keys, by their names."""
        return [child for name, child in self.module.named_children() if name in NORMS]

    @property
    def own(self) -> tuple[str, ...]:
        """Its own mechanisms in words."""
        names = [name for name, _ in self.module.named_children() if name in NORMS]
        details = {NORM: f" ({', '.join(names)})" if names else ""}
        return tuple(f"{each}{details.get(each, '')}" for each in sorted(self.mechanisms))


Listener = Callable[[nn.Module, Tensor, Tensor, Mapping[str, Any]], None]

_listeners: list[Listener] = []


def probe(model: Any, example: Mapping[str, Any] | None) -> list[Seen]:
    """The attention modules of a model that call the interface.

    Leaves configurations changed; whoever calls restores them.

    Raises:
        UnsupportedError: the model cannot be called with the example or a made-up one.
    """
    _register()
    model.set_attn_implementation(PROBE)
    seen: dict[nn.Module, Seen] = {}

    def notice(module: nn.Module, q: Tensor, k: Tensor, extras: Mapping[str, Any]) -> None:
        if module in seen:
            return
        own = {
            CAP: extras.get("softcap") is not None,
            SINK: extras.get("s_aux") is not None,
        }
        causal = extras.get("is_causal")
        seen[module] = Seen(
            module,
            heads=q.shape[1],
            kv_heads=k.shape[1],
            head_dim=q.shape[3],
            dim=0,
            causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
            cross=q.shape[2] != k.shape[2],
            mechanisms={name for name, present in own.items() if present},
        )

    try:
        call = dict(example) if example is not None else made_up(model)
    except AttributeError as error:
        raise UnsupportedError(
            f"no input could be made up for {type(model).__name__} ({error}); pass example=, a "
            "dictionary of arguments that it can be called with"
        ) from error
    with _quiet(model), _listening(notice):
        _call(model, call, made_up=example is None)
    hooks = [
        module.register_forward_pre_hook(_Scaling(each), with_kwargs=True)
        for module, each in seen.items()
    ]
    try:
        with _quiet(model), _listening(lambda *_: None):
            _call(model, call, made_up=example is None)
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen.values())


def made_up(model: Any) -> dict[str, Any]:
    """A small input for a model, from its configuration.

    Raises:
        UnsupportedError: it takes something that cannot be made up here.
    """
    config, device = model.config, model.device
    text = config.get_text_config()
    name = model.main_input_name
    call: dict[str, Any] = {}
    if name == "input_ids":
        call[name] = _ids(TOKENS, text.vocab_size, device)
    elif name == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        shape = 1, config.num_channels, height, width
        call[name] = (
            torch.linspace(-1, 1, height * width, device=device, dtype=model.dtype)
            .view(height, width)
            .expand(shape)
        )
    else:
        raise UnsupportedError(
            f"{type(model).__name__} takes {name!r}, which is not made up here; pass example=, a "
            "dictionary of arguments that the model can be called with"
        )
    if config.is_encoder_decoder:
        call["decoder_input_ids"] = _ids(TARGETS, text.vocab_size, device)
    if "use_cache" in inspect.signature(model.forward).parameters:
        call["use_cache"] = False
    return call


class _Scaling:
    """A hook: has a module called with its input scaled, and compares queries and keys."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.done = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.done:
            return
        self.done = True
        states = args[0] if args else kwargs["hidden_states"]
        self.seen.dim = states.shape[-1]
        at = [self._queries_and_keys(module, args, kwargs, factor) for factor in (0.0, 1.0, FACTOR)]
        for zero, one, many in zip(*at, strict=True):
            expected = FACTOR * (one - zero)
            error = torch.linalg.vector_norm(many - zero - expected)
            if error > TOLERANCE * torch.linalg.vector_norm(expected):
                self.seen.mechanisms.add(NORM)

    def _queries_and_keys(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], factor: float
    ) -> list[Tensor]:
        found: list[Tensor] = []

        def take(_: nn.Module, q: Tensor, k: Tensor, __: Mapping[str, Any]) -> None:
            found.extend((q.float(), k.float()))

        scaled = {
            name: value * factor if name in STATES and isinstance(value, Tensor) else value
            for name, value in kwargs.items()
            if name not in ("cache", "past_key_values")
        }
        first = tuple(value * factor if index == 0 else value for index, value in enumerate(args))
        with _listening(take):
            # Not the module itself, whose hooks this is one of.
            module.forward(*first, **scaled)
        return found[:2]


def _listen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The function that modules call while their model is probed: standard attention."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if _listeners:
        _listeners[-1](module, query, key, extras)
    extras = {name: extras[name] for name in ("is_causal", "position_bias") if name in extras}
    out: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **extras
    )
    return out


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(PROBE, _listen)
    AttentionMaskInterface.register(PROBE, sdpa_mask)


@contextmanager
def _listening(listener: Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def _quiet(model: Any) -> Iterator[None]:
    """In evaluation, without gradients, and without a trace in modes and random numbers."""
    modes = {module: module.training for module in model.modules()}
    devices = [model.device] if model.device.type == "cuda" else []
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _call(model: Any, call: Mapping[str, Any], *, made_up: bool) -> None:
    try:
        model(**call)
    except Exception as error:
        what = "a made-up input" if made_up else "the example"
        raise UnsupportedError(
            f"{type(model).__name__} could not be called with {what} "
            f"({type(error).__name__}: {error}); pass example=, a dictionary of arguments that "
            "the model can be called with"
        ) from error


def _ids(count: int, vocabulary: int, device: torch.device) -> Tensor:
    """(1, count) token ids."""
    return (torch.arange(3, 3 + count, device=device) % vocabulary).unsqueeze(0)
