"""Softmax off by one: a query may attend to nothing.

    w_ij = exp(s_ij) / (1 + sum_j' exp(s_ij')),   s_ij = q_i . k_j / sqrt(d)

The same as one more key of zeros with a value of zeros. A row of scores far below zero has an
output of zero; far above zero it is that of `standard`. Additive biases are part of s.

Source: Miller 2023, "Attention is off by one" (a note); kyegomez/AttentionIsOFFByOne. Compared with
its formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..reference import visible_logits
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class Softmax1Config:
    """No options."""


@register(
    "softmax1",
    Softmax1Config,
    summary="exp(s) / (1 + sum exp(s)), s = q . k / sqrt(d)",
    source="Miller 2023, Attention is off by one",
)
class Softmax1(Variant):
    """exp(s) / (1 + sum exp(s)), s = q . k / sqrt(d)."""

    averages_values = False

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, sink=0.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = visible_logits(q @ k.mT / math.sqrt(q.shape[-1]), call)
        peak = functional.relu(logits.amax(-1, keepdim=True)).detach()
        weights = torch.exp(logits - peak)
        return weights / (torch.exp(-peak) + weights.sum(-1, keepdim=True)) @ v
