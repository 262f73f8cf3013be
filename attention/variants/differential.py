"""Differential attention: the difference of two softmax maps cancels what both attend to.

    o_i = (1 - l0) RMSNorm((A1 - l A2) v),   A_m = softmax(q_m k_m^T / sqrt(d / 2))
    l = exp(a1 . b1) - exp(a2 . b2) + l0,    l0 = 0.8 - 0.6 exp(-0.3 layer)

Queries and keys of a head are cut in two halves of width d / 2, one for each map; both maps weigh
the head's values. a and b are learned vectors of that width, from a normal distribution of 0.1,
and the RMSNorm has a learned weight of width d; all of them are shared by the heads, as published.
A head of ours is a pair of heads in the paper, which compares it with twice as many plain heads of
half the width. With l = 0 and without the norm this is `standard` on the first halves.

Weights, asked for in words, are A1 - l A2; they may be negative. Each map drops weights of its own.

Source: Ye et al. 2024, arXiv 2410.05258, equations 1 to 3; compared with its formula and with
microsoft/unilm Diff-Transformer/multihead_diffattn.py (MIT).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..normalize import rms_norm
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Context, Prepared, UnsupportedError, Variant

EPS = 1e-5


@dataclass(frozen=True)
class DifferentialConfig:
    """No options."""


@register(
    "differential",
    DifferentialConfig,
    summary="softmax(q1 . k1 / sqrt(d/2)) - l softmax(q2 . k2 / sqrt(d/2)), l learned; RMSNorm",
    source="Ye et al. 2024, arXiv 2410.05258",
)
class Differential(Variant):
    """softmax(q1 . k1 / sqrt(d/2)) - l softmax(q2 . k2 / sqrt(d/2)), l learned; RMSNorm."""

    averages_values = False
    maps = 2

    def __init__(self, config: DifferentialConfig, context: Context) -> None:
        super().__init__(config, context)
        if context.head_dim % 2:
            raise UnsupportedError(
                f"head_dim={context.head_dim} cannot be cut in two halves; it must be even"
            )
        self.start = 0.8 - 0.6 * math.exp(-0.3 * context.layer)
        half = context.head_dim // 2
        self.query_1, self.key_1, self.query_2, self.key_2 = (
            nn.Parameter(0.1 * torch.randn(half)) for _ in range(4)
        )
        self.norm = nn.Parameter(torch.ones(context.head_dim))

    def share(self) -> Tensor:
        """l, how much of the second map is taken away; a number."""
        first, second = self.query_1 @ self.key_1, self.query_2 @ self.key_2
        return first.exp() - second.exp() + self.start

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        scale = (self.context.head_dim // 2) ** -0.5
        return Prepared(_halves(q), _halves(k), v, scale=scale)

    def merge(self, maps: Tensor) -> Tensor:
        return maps[:, 0::2] - self.share().to(maps.dtype) * maps[:, 1::2]

    def finish(self, out: Tensor, call: Call) -> Tensor:
        return rms_norm(out, self.norm, EPS) * (1.0 - self.start)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        half = q.shape[-1] // 2
        outputs = []
        for part in (slice(0, half), slice(half, None)):
            logits = q[..., part] @ k[..., part].mT / math.sqrt(half)
            outputs.append(attend_explicitly(logits, v, call))
        taken = torch.exp((self.query_1 * self.key_1).sum())
        given = torch.exp((self.query_2 * self.key_2).sum())
        out = outputs[0] - (taken - given + self.start).to(q.dtype) * outputs[1]
        out = out / (out.square().mean(-1, keepdim=True) + EPS).sqrt()
        return out * self.norm.to(q.dtype) * (1.0 - self.start)


def _halves(x: Tensor) -> Tensor:
    """(B, H, N, D) to (B, 2 H, N, D / 2), the halves of a head next to one another; a view."""
    batch, heads, tokens, width = x.shape
    split = x.view(batch, heads, tokens, 2, width // 2).transpose(2, 3)
    return split.flatten(1, 2)
