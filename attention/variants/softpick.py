"""Softpick: weights that can be exactly zero, and rows that need not sum to one.

    w_ij = relu(exp(s_ij) - 1) / (sum_j' |exp(s_ij') - 1| + eps),   s_ij = q_i . k_j / sqrt(d)

A negative score gives no weight but still counts in the sum. A row of negative scores has an
output of zero, and its scores no gradient; far above zero the map is the softmax. Additive biases
are part of s.

Source: Zuhri et al. 2025, arXiv 2504.20966; compared with its formula and with
zaydzuhri/softpick-attention, whose eps of 1e-8 is used here, added after the division by e^m.
Numerical notes: both parts are divided by e^m, m the largest score of the row or 0. Scores far
smaller than 1 lose digits to the subtraction, as in the published code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..maps import ScoreMap
from ..reference import visible_logits
from ..registry import register
from ..variant import Call, Prepared, Variant

EPS = 1e-8


@dataclass(frozen=True)
class SoftpickConfig:
    """No options."""


class SoftpickMap(ScoreMap):
    """relu(e^s - 1) / (sum |e^s - 1| + eps)."""

    def weights(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        peak = logits.detach().amax(-1, keepdim=True).relu()
        excess = torch.exp(logits - peak) - torch.exp(-peak)
        if visible is not None:
            excess = excess.masked_fill(~visible, 0.0)
        return excess.relu() / (excess.abs().sum(-1, keepdim=True) + EPS)


@register(
    "softpick",
    SoftpickConfig,
    summary="relu(e^s - 1) / sum |e^s - 1|, s = q . k / sqrt(d)",
    source="Zuhri et al. 2025, arXiv 2504.20966",
)
class Softpick(Variant):
    """relu(e^s - 1) / sum |e^s - 1|, s = q . k / sqrt(d)."""

    averages_values = False
    map = SoftpickMap()

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, map=self.map)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = visible_logits(q @ k.mT / math.sqrt(q.shape[-1]), call)
        visible = logits > -torch.inf
        excess = torch.expm1(logits).masked_fill(~visible, 0.0)
        largest = excess.detach().amax(-1, keepdim=True).clamp_min(0.0)
        total = excess.abs().sum(-1, keepdim=True) + EPS * (1.0 + largest)
        return torch.where(excess > 0.0, excess, 0.0) / total @ v
