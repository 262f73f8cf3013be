"""QKNorm without a learned scale: the cosine of query and key.

    logit_ij = (q_i / |q_i|) . (k_j / |k_j|)

No factor 1/sqrt(d). Logits lie in [-1, 1], so attention stays near uniform: the control that shows
what a scale is for.

Source: Henry et al. 2020, arXiv 2010.04245, with the scale left out; compared with its formula.
Numerical notes: the kernel's default scale is overridden. Zero vectors have logits 0, no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class QKNormConfig:
    """No options."""


@register(
    "qknorm",
    QKNormConfig,
    summary="q/|q| . k/|k|",
    source="Henry et al. 2020, arXiv 2010.04245, without its scale",
)
class QKNorm(Variant):
    """q/|q| . k/|k|."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(l2_normalize(q), l2_normalize(k), v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        unit_q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        unit_k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return attend_explicitly(unit_q @ unit_k.mT, v, call)
