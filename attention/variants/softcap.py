"""Logit soft-cap: scores bend towards a bound that they never reach.

    logit_ij = c tanh(s_ij / c),   s_ij = q_i . k_j / sqrt(d)

With c at infinity this is `standard`. Additive biases and masks come after the cap.

Source: Gemma 2 (2024), arXiv 2408.00118, where c = 50 in the attention; google/gemma_pytorch.
Compared with its formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..maps import SoftmaxMap
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Context, Prepared, Variant


@dataclass(frozen=True)
class SoftcapConfig:
    """Options.

    Args:
        cap: the bound c.
    """

    cap: float = 50.0

    def __post_init__(self) -> None:
        if not 0.0 < self.cap < math.inf:
            raise ValueError(f"cap={self.cap} must be a number above 0; `standard` has no cap")


class CapMap(SoftmaxMap):
    """softmax(c tanh(s / c))."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def transform(self, scores: Tensor) -> Tensor:
        return torch.tanh(scores * (1.0 / self.cap)) * self.cap


@register(
    "softcap",
    SoftcapConfig,
    summary="c tanh(q . k / (c sqrt(d)))",
    source="Gemma 2, arXiv 2408.00118",
)
class Softcap(Variant):
    """c tanh(q . k / (c sqrt(d)))."""

    def __init__(self, config: SoftcapConfig, context: Context) -> None:
        super().__init__(config, context)
        self.map = CapMap(config.cap)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, map=self.map)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return attend_explicitly(self.config.cap * torch.tanh(scores / self.config.cap), v, call)
