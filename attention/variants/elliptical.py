"""Elliptical attention: channels weighted by how much the values change between layers.

    logit_ij = sum_c q_ic m_c k_jc / sqrt(d)
    a_c = sum over real tokens n of |v_l,nc - v_(l-1),nc|,   m_c = a_c / max_c' a_c'

v_l and v_(l-1) are the projected values of this layer and of the layer before; m is estimated for
each example and head, takes no gradient, and has no parameters. Layer 0 is standard attention.
`scaling="mean"` divides by the mean over the channels instead. The constant divisors of the
published estimator, number of tokens and delta, cancel.

A mean over all tokens lets a causal model see the future, so that one is refused; with
`causal=True` query i uses the tokens up to i, one m a query. The published language models,
`Wikitext/` of that repository, do see it: `causal="leaky"`, a name that says so.

Source: Nielsen et al. 2024, arXiv 2406.13770; compared with stefvk/Elliptical-Attention
ImageNet/models.py `MahalaAttention` at 5ae39eee735265bd1fb9618c22afe9ea2fb580ef (values and
gradients, tests/attention/test_vectors.py; that repository states no licence for this file, and
nothing of it is copied). On purpose different: padded tokens are left out, and where no value
changed m is 0 instead of 0/0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..normalize import widen
from ..reference import attend_explicitly
from ..registry import register
from ..variant import (
    ALL_CAPABILITIES,
    NEEDS_STATE,
    Call,
    Context,
    Prepared,
    UnsupportedError,
    Variant,
)

SCALINGS = ("max", "mean")
CAUSAL = (False, True, "leaky")


@dataclass(frozen=True)
class EllipticalConfig:
    """Options.

    Args:
        scaling: what the change of a channel is divided by: `"max"` or `"mean"` over channels.
        causal: estimate m for each query from the tokens up to it; needed in causal models.
            `"leaky"` lets a causal model estimate it from all tokens, later ones included: what it
            then predicts is partly known to it.
    """

    scaling: str = "max"
    causal: bool | str = False

    def __post_init__(self) -> None:
        if self.causal not in CAUSAL:
            allowed = ", ".join(map(repr, CAUSAL))
            raise ValueError(f"causal={self.causal!r} is unknown; allowed: {allowed}")
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling={self.scaling!r} is unknown; allowed: {', '.join(SCALINGS)}")


@register(
    "elliptical",
    EllipticalConfig,
    summary="(m * q) . k / sqrt(d), m from the change of v between layers",
    source="Nielsen et al. 2024, arXiv 2406.13770",
)
class Elliptical(Variant):
    """(m * q) . k / sqrt(d), m from the change of v between layers."""

    capabilities = ALL_CAPABILITIES | {NEEDS_STATE}

    def __init__(self, config: EllipticalConfig, context: Context) -> None:
        super().__init__(config, context)
        if context.causal and not config.causal:
            raise UnsupportedError(
                "this attention estimates its metric from all tokens, which shows a causal model "
                "the future; set its option causal=true"
            )
        if config.causal == "leaky" and not context.causal:
            raise UnsupportedError(
                "option causal='leaky' is for causal models; this one sees all tokens anyway"
            )
        if context.cross and config.causal:
            raise UnsupportedError(
                "option causal=true orders queries and keys in one sequence; this model uses the "
                "layer for cross-attention"
            )

    def weigh(self, q: Tensor, v: Tensor, call: Call) -> Tensor:
        """The queries (B, H, Nq, D), times m from layer 1 on. Leaves v in the state."""
        before = self._previous(v, call)
        if before is None:
            return q
        change = widen(v.detach() - before[0]).abs()
        for mask in (call.key_padding_mask, before[1]):
            if mask is not None:
                change = change * mask[:, None, :, None]
        if self.config.causal is True:
            amount = change.cumsum(-2)[..., -q.shape[-2] :, :]
        else:
            amount = change.sum(-2, keepdim=True)
        over_channels = torch.amax if self.config.scaling == "max" else torch.mean
        m = amount / over_channels(amount, -1, keepdim=True).clamp_min(1e-12)
        return q * m.to(q.dtype)

    def _previous(self, v: Tensor, call: Call) -> tuple[Tensor, Tensor | None] | None:
        """Values and padding mask of the layer before; None in layer 0."""
        if call.state is not None:
            return call.state.advance(self.context.layer, v, call.key_padding_mask)
        if self.context.num_layers > 1:
            raise ValueError("state: the values of the layer before are needed; pass the state")
        return None

    def reference_metric(self, q: Tensor, v: Tensor, call: Call) -> Tensor:
        """m as (B, H, 1 or Nq, D), ones in layer 0; written as published, token by token."""
        before = self._previous(v, call)
        if before is None:
            return torch.ones_like(q[..., :1, :])
        real = torch.ones(v.shape[0], v.shape[2], dtype=torch.bool, device=v.device)
        for mask in (call.key_padding_mask, before[1]):
            real = real if mask is None else real & mask
        nq, nk = q.shape[-2], v.shape[-2]
        upto = range(nk - nq + 1, nk + 1) if self.config.causal is True else [nk]
        rows = []
        for end in upto:
            weight = real[:, None, :end, None].to(v.dtype)
            change = (v.detach()[..., :end, :] - before[0][..., :end, :]).abs() * weight
            rows.append(change.sum(-2) / weight.sum(-2).clamp_min(1.0))
        mean = torch.stack(rows, -2)
        if self.config.scaling == "max":
            return mean / mean.max(-1, keepdim=True).values.clamp_min(1e-12)
        return mean / mean.mean(-1, keepdim=True).clamp_min(1e-12)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(self.weigh(q, v, call), k, v, scale=self.context.head_dim**-0.5)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        m = self.reference_metric(q, v, call)
        return attend_explicitly((q * m) @ k.mT / math.sqrt(q.shape[-1]), v, call)
