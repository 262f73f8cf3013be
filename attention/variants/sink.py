"""A learned sink in every head: a query may attend to nothing.

    w_ij = exp(s_ij) / (exp(b_h) + sum_j' exp(s_ij')),   s_ij = q_i . k_j / sqrt(d)

With b_h at minus infinity this is `standard`, with 0, its start by default, `softmax1`. Additive
biases are part of s.

Source: gpt-oss (2025), openai/gpt-oss gpt_oss/torch/model.py `sdpa`, where the sinks are one more
column of scores that is dropped after the softmax (Apache-2.0; compared with its formula). The
model's initial values are not published; the start is an option.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..reference import visible_logits
from ..registry import register
from ..variant import Call, Context, Prepared, Variant


@dataclass(frozen=True)
class SinkConfig:
    """Options.

    Args:
        start: initial value of b.
    """

    start: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.start):
            raise ValueError(f"start={self.start} must be a number")


@register(
    "sink",
    SinkConfig,
    summary="exp(s) / (exp(b_h) + sum exp(s)), s = q . k / sqrt(d), b_h learned",
    source="gpt-oss 2025, openai/gpt-oss",
)
class Sink(Variant):
    """exp(s) / (exp(b_h) + sum exp(s)), s = q . k / sqrt(d), b_h learned."""

    averages_values = False

    def __init__(self, config: SinkConfig, context: Context) -> None:
        super().__init__(config, context)
        self.sink = nn.Parameter(torch.full((context.heads, 1, 1), float(config.start)))

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, sink=self.sink)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = visible_logits(q @ k.mT / math.sqrt(q.shape[-1]), call)
        column = self.sink.to(q.dtype).expand(*logits.shape[:-1], 1)
        return torch.cat([logits, column], -1).softmax(-1)[..., :-1] @ v
