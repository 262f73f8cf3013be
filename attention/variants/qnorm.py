"""QNorm: queries on the unit sphere, the norm of a key is its weight for all queries.

    logit_ij = q_i . k_j / |q_i|

No factor 1/sqrt(d) and no learned scale. |logit_ij| <= |k_j|.

Source: arXiv 2604.00199 (the counterpart of QUEST in its comparison); compared with its formula.
Numerical notes: the kernel's default scale is overridden. A zero query has logits 0, no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class QNormConfig:
    """No options."""


@register("qnorm", QNormConfig, summary="q/|q| . k", source="QUEST 2026, arXiv 2604.00199")
class QNorm(Variant):
    """q/|q| . k."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(l2_normalize(q), k, v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        unit = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return attend_explicitly(unit @ k.mT, v, call)
