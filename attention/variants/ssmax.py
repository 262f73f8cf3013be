"""Scalable-Softmax: scores times a learned scale of each head and the logarithm of n.

    logit_ij = s_h log(n_i) q_i . k_j / sqrt(d)

n_i is the number of keys that query i sees (padded and hidden ones do not count). With
s_h log n_i = 1 this is `standard`. A query that sees one key has logit 0: its weight is 1 anyway.

Source: Nakanishi 2025, arXiv 2501.19399, without its optional bias; compared with its formula. No
initial value of s was found in what was compared; it is an option, 1 by default (0.43 is the
paper's example of a fixed value).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..counts import log_of, visible_keys
from ..reference import attend_explicitly, visible_logits
from ..registry import register
from ..variant import Call, Context, Prepared, Variant


@dataclass(frozen=True)
class SSMaxConfig:
    """Options.

    Args:
        start: initial value of s.
    """

    start: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.start):
            raise ValueError(f"start={self.start} must be a number")


@register(
    "ssmax",
    SSMaxConfig,
    summary="s_h log(n) q . k / sqrt(d), s_h learned, n keys visible",
    source="Nakanishi 2025, arXiv 2501.19399",
)
class SSMax(Variant):
    """s_h log(n) q . k / sqrt(d), s_h learned, n keys visible."""

    def __init__(self, config: SSMaxConfig, context: Context) -> None:
        super().__init__(config, context)
        self.scale = nn.Parameter(torch.full((context.heads, 1, 1), float(config.start)))

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        factor = self.scale * log_of(visible_keys(q, k, call), q)
        return Prepared((q * factor).to(q.dtype), k, v, scale=self.context.head_dim**-0.5)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        visible = visible_logits(logits, call) > -torch.inf
        n = visible.sum(-1, keepdim=True).clamp_min(1).to(q.dtype)
        return attend_explicitly(self.scale.to(q.dtype) * n.log() * logits, v, call)
