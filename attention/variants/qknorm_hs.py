"""QKNorm-HS: cosine of query and key times one learned scale a head.

    logit_ij = c_h (q_i / |q_i|) . (k_j / |k_j|)

c_h is stored as a logarithm, so it is always positive; it starts at 10, or at
`max_scale` where that is lower, and is at most `max_scale`.
No factor 1/sqrt(d). |logit_ij| <= c_h.

Source: Henry et al. 2020, arXiv 2010.04245; initial value, logarithm and bound as in
microsoft/Swin-Transformer models/swin_transformer_v2.py (MIT licence; there the layer has a
position bias and no key bias besides, which are not part of the mechanism).
Numerical notes: a scale above the bound gets no gradient, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Context, Prepared, Variant


@dataclass(frozen=True)
class QKNormHSConfig:
    """Options.

    Args:
        max_scale: upper bound of c_h, and its start where it is below 10; None = no bound.
    """

    max_scale: float | None = 100.0

    def __post_init__(self) -> None:
        if self.max_scale is not None and not self.max_scale > 0.0:
            raise ValueError(f"max_scale={self.max_scale} must be positive, or None for no bound")


@register(
    "qknorm_hs",
    QKNormHSConfig,
    summary="c_h (q/|q| . k/|k|), c_h learned",
    source="Henry et al. 2020, arXiv 2010.04245; Swin Transformer V2",
)
class QKNormHS(Variant):
    """c_h (q/|q| . k/|k|), c_h learned."""

    def __init__(self, config: QKNormHSConfig, context: Context) -> None:
        super().__init__(config, context)
        self.log_bound = math.inf if config.max_scale is None else math.log(config.max_scale)
        # A start above the bound would get no gradient, ever.
        start = min(math.log(10.0), self.log_bound)
        self.log_scale = nn.Parameter(torch.full((context.heads, 1, 1), start))

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        scale = self.log_scale.clamp(max=self.log_bound).exp()
        scaled_q = (l2_normalize(q) * scale).to(q.dtype)
        return Prepared(scaled_q, l2_normalize(k), v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        scale = self.log_scale.to(q.dtype).exp()
        if self.config.max_scale is not None:
            scale = torch.where(scale < self.config.max_scale, scale, self.config.max_scale)
        unit_q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        unit_k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return attend_explicitly(scale * (unit_q @ unit_k.mT), v, call)
