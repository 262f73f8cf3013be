"""Gated attention: the output of every head passes a gate that its token opens.

    out_i = sigmoid(W_h x_i) * (softmax_j(q_i . k_j / sqrt(d)) v_j)

x_i is the token that the query is projected from; the gate is element-wise and stands before the
output projection, the position that the paper calls G1. W, one matrix (d, width of x) a head, has
no bias and starts like an `nn.Linear`, so that gates start around 1/2. Wide open this is
`standard`.

Source: Qiu et al. 2025, arXiv 2505.06708; compared with its formula and with the element-wise gate
of qiuzh20/gated_attention, where W is a part of the query projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..reference import attend_explicitly
from ..registry import register
from ..variant import ALL_CAPABILITIES, NEEDS_INPUT, Call, Context, Prepared, Variant


@dataclass(frozen=True)
class GatedConfig:
    """No options."""


@register(
    "gated",
    GatedConfig,
    summary="q . k / sqrt(d); output times sigmoid(W_h x), W_h learned",
    source="Qiu et al. 2025, arXiv 2505.06708",
)
class Gated(Variant):
    """q . k / sqrt(d); output times sigmoid(W_h x), W_h learned."""

    capabilities = ALL_CAPABILITIES | {NEEDS_INPUT}
    averages_values = False

    def __init__(self, config: GatedConfig, context: Context) -> None:
        super().__init__(config, context)
        assert context.dim is not None
        self.gate = nn.Parameter(torch.empty(context.heads, context.head_dim, context.dim))
        bound = context.dim**-0.5
        nn.init.uniform_(self.gate, -bound, bound)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5)

    def finish(self, out: Tensor, call: Call) -> Tensor:
        assert call.x is not None
        opening = functional.linear(call.x, self.gate.flatten(0, 1))
        opening = opening.view(*call.x.shape[:2], *self.gate.shape[:2]).transpose(1, 2)
        return out * opening.sigmoid()

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        assert call.x is not None
        opening = torch.einsum("bnc,hdc->bhnd", call.x, self.gate.to(q.dtype))
        out = attend_explicitly(q @ k.mT / math.sqrt(q.shape[-1]), v, call)
        return out / (1.0 + torch.exp(-opening))

    def parameter_tags(self) -> dict[str, str]:
        # A matrix between values and output, and like theirs it takes weight decay.
        return {"gate": "ov"}
