"""Sigmoid attention: every key is weighed by itself.

    w_ij = sigmoid(s_ij - log n_i),   s_ij = q_i . k_j / sqrt(d)

n_i is the number of keys that query i sees (padded and hidden ones do not count; published is the
length of the sequence). It makes a row of scores around zero sum to about one; beyond that rows
sum to what they like. Additive biases are part of s. For small weights this is softmax without its
normalisation: w = exp(s) / n.

Source: Ramapuram et al. 2024, arXiv 2409.04431; apple/ml-sigmoid-attention. Compared with its
formula.
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


@dataclass(frozen=True)
class SigmoidConfig:
    """No options."""


class SigmoidMap(ScoreMap):
    """sigmoid(s - log n), n keys visible."""

    def weights(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        if visible is None:
            return torch.sigmoid(logits - math.log(max(1, logits.shape[-1])))
        visible = visible.expand(*visible.shape[:-1], logits.shape[-1])
        count = visible.sum(-1, keepdim=True).clamp_min(1)
        return torch.sigmoid(logits - count.to(logits.dtype).log())


@register(
    "sigmoid",
    SigmoidConfig,
    summary="sigmoid(s - log n), s = q . k / sqrt(d), n keys visible",
    source="Ramapuram et al. 2024, arXiv 2409.04431",
)
class Sigmoid(Variant):
    """sigmoid(s - log n), s = q . k / sqrt(d), n keys visible."""

    averages_values = False
    map = SigmoidMap()

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, map=self.map)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = visible_logits(q @ k.mT / math.sqrt(q.shape[-1]), call)
        visible = logits > -torch.inf
        n = visible.sum(-1, keepdim=True).to(q.dtype)
        # sigmoid(s - log n) = 1 / (1 + n exp(-s))
        weights = 1.0 / (1.0 + n * torch.exp(-logits.masked_fill(~visible, 0.0)))
        return weights.masked_fill(~visible, 0.0) @ v
