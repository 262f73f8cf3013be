"""Attention with one projection `qkv` and a projection `proj`, as timm and many others write it.

Known by its parts, whatever library it is from, and by what it computes: a module counts only if
it gives what these parts give as attention, for an input made up when a model is looked at.
`q_norm`, `k_norm` and `norm` are timm's; masks are those of `scaled_dot_product_attention`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .classes import exchanged_class, give_back
from .masks import hidden_as_bias
from .projected import Projected
from .site import Choice, CoreSite, Place, Site, Stack

PARTS = {"qkv", "q_norm", "k_norm", "attn_drop", "norm", "proj", "proj_drop"}
ARGUMENTS = ("x", "attn_mask", "is_causal")
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


class SwappedFused(Projected):
    """Such an attention with a variant inside."""

    stack: Stack | None
    causal_refusal: str | None
    keeps_own: bool

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attention of tokens (B, N, C) to one another.

        Args:
            x: (B, N, C).
            attn_mask: broadcasts to (B, H, N, N): bool, True = visible, or float, added.
            is_causal: whether later tokens are hidden.
        """
        if (attn_mask is not None or is_causal) and self.causal_refusal is not None:
            raise ValueError(f"a mask may hide keys that come later: {self.causal_refusal}")
        q, k, v = (
            each.view(*each.shape[:2], self.num_heads, -1).transpose(1, 2)
            for each in self.project_in(x).chunk(3, -1)
        )
        if self.keeps_own:
            q, k = _part(self, "q_norm")(q), _part(self, "k_norm")(k)
        q = self.with_own_scale(q)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = hidden_as_bias(~attn_mask, q.dtype)
        state = None
        if self.stack is not None:
            state = self.stack.state(self.core.context.layer, self.core.context.num_layers)
        out = self.core(q, k, v, bias=attn_mask, state=state, x=x, causal=is_causal)
        out = _part(self, "norm")(out.transpose(1, 2).flatten(2))
        result: Tensor = _part(self, "proj_drop")(self.project_out(out))
        return result


class FusedSite(CoreSite):
    """Such an attention."""

    def __init__(self, name: str, module: Any) -> None:
        super().__init__(name, module)
        self.original = type(module)
        self.kind = f"{self.original.__module__}.{self.original.__qualname__}"
        self.heads = module.num_heads
        self.head_dim = module.qkv.out_features // 3 // module.num_heads
        norms = [
            name for name in ("q_norm", "k_norm")
            if not isinstance(_part(module, name), nn.Identity)
        ]  # fmt: skip
        if norms:
            self.own = (f"normalised queries and keys ({', '.join(norms)})",)

    @property
    def width(self) -> str:
        return f"{self.heads} heads of {self.head_dim}"

    def build(self, choice: Choice, place: Place) -> None:
        module: Any = self.module
        inner, dim = self.heads * self.head_dim, module.qkv.in_features
        dropout = _part(module, "attn_drop")
        self.core = self.new_core(
            choice,
            place,
            self.heads,
            self.head_dim,
            module.qkv.weight,
            dropout=dropout.p if isinstance(dropout, nn.Dropout) else 0.0,
            dim=dim,
            projections={
                **dict.fromkeys("qkv", (inner, dim)),
                "out": (module.proj.out_features, inner),
            },
        )
        self.stack = place.stack if choice.needs_state else None
        self.keeps_own = choice.own != "replace"
        self.refusal = self.causal_refusal(choice)

    def enter(self) -> None:
        module: Any = self.module
        module.__class__ = exchanged_class(SwappedFused, self.original)
        module.core = self.core
        module.stack = self.stack
        module.causal_refusal = self.refusal
        module.keeps_own = self.keeps_own
        self.core.variant.adopt(module.projections())

    def leave(self) -> None:
        give_back(self.module, self.original, ("core", "stack", "causal_refusal", "keeps_own"))


def find(modules: Mapping[str, nn.Module]) -> Iterator[Site]:
    """Sites among the modules of a model, by qualified name."""
    for name, module in modules.items():
        if _has_the_parts(module):
            site = FusedSite(name, module)
            if _computes_attention(site):
                yield site


def _has_the_parts(module: Any) -> bool:
    children = dict(module.named_children())
    qkv, proj, heads = children.get("qkv"), children.get("proj"), getattr(module, "num_heads", 0)
    if not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear) and isinstance(heads, int)):
        return False
    arguments = tuple(inspect.signature(module.forward).parameters)
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return (
        heads > 0
        and not own
        and children.keys() <= PARTS
        and arguments == ARGUMENTS[: len(arguments)]
        and qkv.out_features == 3 * proj.in_features
        and proj.in_features % heads == 0
    )


@torch.no_grad()
def _computes_attention(site: FusedSite) -> bool:
    """Whether a module gives what its parts give as standard attention."""
    module: Any = site.module
    weight = module.qkv.weight
    count = 2 * 5 * module.qkv.in_features
    x = torch.arange(count, device=weight.device).to(weight.dtype).sin().view(2, 5, -1)
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        # Past the hooks of the module, which are not to see this.
        expected = module.forward(x)
        site.build(Choice("standard", own="keep"), Place(0, 1, Stack()))
        site.enter()
        try:
            out = module.forward(x)
        finally:
            site.leave()
    except (RuntimeError, TypeError, ValueError):
        return False
    finally:
        for child, training in modes.items():
            child.training = training
    tolerance = TOLERANCES.get(weight.dtype, 5e-2)
    return (
        isinstance(expected, Tensor)
        and expected.shape == out.shape
        and torch.allclose(out, expected, atol=tolerance * float(expected.abs().max()), rtol=0.0)
    )


def _part(module: nn.Module, name: str) -> nn.Module:
    """A part that some versions do not have."""
    part = getattr(module, name, None)
    return part if isinstance(part, nn.Module) else nn.Identity()
