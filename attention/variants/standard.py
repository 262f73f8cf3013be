"""Scaled dot-product attention.

    logit_ij = q_i . k_j / sqrt(d)

Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1. Compared with
`torch.nn.MultiheadAttention` of PyTorch (values and gradients, tests/attention/test_multihead.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class StandardConfig:
    """No options."""


@register(
    "standard",
    StandardConfig,
    summary="q . k / sqrt(d)",
    source="Vaswani et al. 2017, arXiv 1706.03762",
)
class Standard(Variant):
    """q . k / sqrt(d)."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend_explicitly(q @ k.mT / math.sqrt(q.shape[-1]), v, call)
