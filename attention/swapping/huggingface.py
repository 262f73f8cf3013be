"""Models of `transformers`, through its attention interface.

The attention modules of such a model hand queries, keys and values to a function that the model's
configuration names. A swap registers one function, which goes to the core of the calling module,
and names it. Projections, rotary positions, caches and masks stay with the model; what it caches
are keys before the variant. Which modules call the function is found out by calling the model,
see :mod:`attention.swapping.huggingface_probe`.

A scale other than 1/sqrt(d) is taken for a part of the queries, so that `standard` changes
nothing. The name of the function is not stored with a model: load it, then swap it again.

Source: the interface of transformers 5, `modeling_utils.AttentionInterface` and
`masking_utils.AttentionMaskInterface`; without a mask function of its own, a function is called
without masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..core import AttentionCore
from ..variant import (
    NEEDS_INPUT,
    NEEDS_WEIGHTS,
    Call,
    Context,
    LayerState,
    Prepared,
    UnsupportedError,
)
from ..variants.softcap import CapMap
from .classes import Exchanged, exchanged_class, give_back
from .huggingface_probe import CAP, NORM, SINK, Seen, probe
from .masks import hidden_as_bias, merge
from .site import Choice, CoreSite, Place, Site, Stack

IMPLEMENTATION = "attention_swap"
"""Name of the function; `sdpa` and some other words in such a name would have a meaning."""


class SwappedHuggingFace(Exchanged):
    """An attention module of transformers that has a core."""

    core: AttentionCore
    stack: Stack | None
    keeps_own: bool
    tokens: Tensor | None


class Implementation:
    """What the configurations of one model name, while sites of it are swapped and after."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sites: set[str] = set()
        self.before: list[tuple[Any, str | None]] = []

    def enter(self, site: str) -> None:
        """Name our function, with the first site."""
        if not self.sites:
            self.before = remember(self.model)
            _register()
            self.model.set_attn_implementation(IMPLEMENTATION)
        self.sites.add(site)

    def leave(self, site: str) -> None:
        """Name what was named before, with the last site."""
        self.sites.discard(site)
        if not self.sites:
            restore(self.before)
            self.before = []


class HuggingFaceSite(CoreSite):
    """An attention module of transformers."""

    def __init__(self, name: str, seen: Seen, implementation: Implementation) -> None:
        super().__init__(name, seen.module)
        self.seen = seen
        self.implementation = implementation
        self.original = type(seen.module)
        self.kind = f"transformers {self.original.__name__}"
        self.own = seen.own
        self.hooks: list[Any] = []

    @property
    def width(self) -> str:
        seen = self.seen
        shared = f" ({seen.kv_heads} of keys)" if seen.kv_heads != seen.heads else ""
        return f"{seen.heads} heads of {seen.head_dim}{shared}"

    def build(self, choice: Choice, place: Place) -> None:
        seen = self.seen
        capabilities = registry.entry(choice.variant).capabilities
        if NEEDS_WEIGHTS in capabilities:
            raise UnsupportedError(
                f"attention={choice.variant!r} acts on the weights of the projections, which a "
                "model of transformers applies itself; it can be had in models built of "
                "nn.MultiheadAttention or of this package"
            )
        self.core = self.new_core(
            choice,
            place,
            seen.heads,
            seen.head_dim,
            next(self.module.parameters()),
            causal=seen.causal,
            cross=seen.cross,
            dim=seen.dim,
        )
        self.choice = choice
        self.stack = place.stack if choice.needs_state else None
        if choice.own == "keep":
            self._refuse_two_maps(choice)
        if choice.own == "replace" and NORM in seen.mechanisms and not seen.norms:
            raise UnsupportedError(
                "what normalises or clips its queries and keys is no module of a known name and "
                "cannot be switched off; pass own='keep'"
            )

    def enter(self) -> None:
        module: Any = self.module
        module.__class__ = exchanged_class(SwappedHuggingFace, self.original)
        module.core = self.core
        module.stack = self.stack
        module.keeps_own = self.choice.own == "keep"
        module.tokens = None
        if NEEDS_INPUT in self.core.variant.capabilities:
            self.hooks.append(module.register_forward_pre_hook(_hold_tokens, with_kwargs=True))
        if self.choice.own == "replace":
            self.hooks += [norm.register_forward_hook(_bypass) for norm in self.seen.norms]
        self.implementation.enter(self.name)

    def leave(self) -> None:
        for hook in self.hooks:
            hook.remove()
        give_back(self.module, self.original, SwappedHuggingFace.__annotations__)
        self.implementation.leave(self.name)

    def _refuse_two_maps(self, choice: Choice) -> None:
        """A cap or a sink of the model can be kept where the variant has neither."""
        if not {CAP, SINK} & self.seen.mechanisms:
            return
        context = Context(self.seen.heads, self.seen.head_dim, dim=self.seen.dim)
        variant = registry.build(choice.variant, context, choice.options)
        q = torch.zeros(1, self.seen.heads, 2, self.seen.head_dim)
        tokens = torch.zeros(1, 2, self.seen.dim)
        prepared = variant.prepare(q, q, q, Call(state=LayerState(), x=tokens))
        if prepared.map is not None or prepared.sink is not None:
            raise UnsupportedError(
                f"attention={choice.variant!r} has a map or a sink itself, which the model's own "
                "cannot be put under; pass own='replace'"
            )


def find(modules: Mapping[str, nn.Module], example: Mapping[str, Any] | None) -> Iterator[Site]:
    """Sites in the models of transformers among the modules of a model, by qualified name.

    Args:
        modules: by qualified name.
        example: a call of the model of transformers; None = one is made up.
    """
    roots: list[str] = []
    for name, module in modules.items():
        if not _is_pretrained(module) or any(
            not root or name.startswith(f"{root}.") for root in roots
        ):
            continue
        roots.append(name)
        names = {inner: path for path, inner in modules.items()}
        implementation = Implementation(module)
        for seen in _probed(module, example):
            yield HuggingFaceSite(names[seen.module], seen, implementation)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that modules of transformers call.

    Args:
        module: who calls.
        query: (B, H, Nq, D); key, value: (B, Hkv, Nk, D), H a multiple of Hkv.
        attention_mask: (B, 1 or H, Nq, Nk), True = visible, or float, added; None = no mask but
            the causal order, where the module is causal.
        scaling: factor of the scores; None = 1/sqrt(D).
        dropout: probability of dropping an attention weight; 0 outside training.
        is_causal: None = as the module says.
        position_bias: broadcasts to (B, H, Nq, Nk), added to the scores.
        softcap, s_aux: mechanisms of the model's own.

    Returns:
        (B, Nq, H, D), and None in the place of the weights.
    """
    core = getattr(module, "core", None)
    if not isinstance(core, AttentionCore):
        return _attend_as_before(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout,
            is_causal=is_causal, position_bias=position_bias, softcap=softcap, s_aux=s_aux,
            **kwargs,
        )  # fmt: skip
    if kwargs.get("output_attentions"):
        raise ValueError(
            "output_attentions: a swapped model hands out no weights; ask the core of a module for "
            "them with core.probabilities(q, k, v)"
        )
    if not module.keeps_own:
        softcap = s_aux = None
    nq, nk, groups = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = nq > 1 and attention_mask is None and causal
    if causal and nk > nq:
        # The keys behind are room of a cache that is filled for the first time.
        key, value = key[:, :, :nq], value[:, :, :nq]
        position_bias = None if position_bias is None else position_bias[..., :nq]
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if scaling is not None:
        own_scale = scaling * math.sqrt(query.shape[-1])
        query = query if math.isclose(own_scale, 1.0) else query * own_scale
    real, state = None, None
    if module.stack is not None:
        real = _keys_of_a_stack(core, attention_mask, nq, nk)
        state = module.stack.state(core.context.layer, core.context.num_layers)
    if module.training and core.dropout != dropout:
        core.dropout = dropout
    prepared, call = core.prepare(
        query,
        key,
        value,
        key_padding_mask=real,
        bias=merge(_bias_of(attention_mask, query), position_bias),
        state=state,
        x=module.tokens,
        causal=causal,
    )
    module.tokens = None
    prepared = _with_own(prepared, softcap, s_aux)
    return core.attend(prepared, call, query, key).transpose(1, 2).contiguous(), None


def remember(model: nn.Module) -> list[tuple[Any, str | None]]:
    """The configurations within a model, and the attention that each of them names."""
    configurations: dict[int, Any] = {}
    todo: list[Any] = [module.config for module in model.modules() if _is_pretrained(module)]
    while todo:
        config = todo.pop()
        if config is not None and id(config) not in configurations:
            configurations[id(config)] = config
            todo += [getattr(config, name, None) for name in config.sub_configs]
    return [(each, each._attn_implementation_internal) for each in configurations.values()]


def restore(before: list[tuple[Any, str | None]]) -> None:
    """Have configurations name again what they did."""
    for config, name in before:
        config._attn_implementation_internal = name


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _probed(model: Any, example: Mapping[str, Any] | None) -> list[Seen]:
    """What a call of the model shows, which it is left unchanged by."""
    if not model._can_set_attn_implementation():
        return []
    before = remember(model)
    try:
        return probe(model, example)
    finally:
        restore(before)


def _is_pretrained(module: nn.Module) -> bool:
    """Whether a module is a model of transformers, without importing that."""
    return any(
        cls.__name__ == "PreTrainedModel" and cls.__module__.startswith("transformers.")
        for cls in type(module).__mro__
    )


def _attend_as_before(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """For a module without a core whose configuration is that of swapped ones."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if kwargs["softcap"] is not None or kwargs["s_aux"] is not None:
        raise ValueError(
            "a layer that was left out has a cap or a sink, which only the model's own attention "
            "computes; swap all layers of this model, or none"
        )
    out: tuple[Tensor, None] = sdpa_attention_forward(*args, **kwargs)
    return out


def _bias_of(mask: Tensor | None, query: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return hidden_as_bias(~mask, query.dtype)


def _keys_of_a_stack(core: AttentionCore, mask: Tensor | None, nq: int, nk: int) -> Tensor | None:
    """(B, Nk), the keys that some query sees, for variants that compute over tokens."""
    if mask is None:
        return None
    if nq != nk and core.context.causal:
        raise ValueError(
            f"attention={core.name!r} needs to know where its queries stand among the keys, and "
            "under a mask this shows in no call with a cache; generate without padding and with "
            "the dynamic cache"
        )
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    return visible.any(2).any(1)


def _with_own(prepared: Prepared, softcap: float | None, s_aux: Tensor | None) -> Prepared:
    """The variant's scores under a cap or with a sink of the model's own."""
    if softcap is not None:
        prepared = prepared._replace(map=CapMap(softcap))
    if s_aux is not None:
        prepared = prepared._replace(sink=s_aux.view(-1, 1, 1))
    return prepared


def _hold_tokens(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A hook: variants that look at the tokens of the queries find them with the module."""
    module.tokens = args[0] if args else kwargs["hidden_states"]


def _bypass(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """A hook: a module hands on its input."""
    return args[0]
