"""QKNorm-LN: LayerNorm on queries and keys of each head, then the usual attention.

    logit_ij = LN_q(q_i) . LN_k(k_j) / sqrt(d)

One LayerNorm for the queries and one for the keys, shared by the heads, with weight (from 1),
bias (from 0) and eps 1e-6.

Source: Dehghani et al. 2023 (ViT-22B), arXiv 2302.05442; with centring, weight and bias as
`qk_norm=True` in huggingface/pytorch-image-models timm/layers/attention.py (Apache-2.0), the usual
reading of the name. Compared with its formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from ..normalize import layer_norm
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Context, Prepared, Variant

EPS = 1e-6


@dataclass(frozen=True)
class QKNormLNConfig:
    """No options."""


@register(
    "qknorm_ln",
    QKNormLNConfig,
    summary="LN(q) . LN(k) / sqrt(d), LayerNorms learned",
    source="ViT-22B, Dehghani et al. 2023, arXiv 2302.05442",
)
class QKNormLN(Variant):
    """LN(q) . LN(k) / sqrt(d), LayerNorms learned."""

    def __init__(self, config: QKNormLNConfig, context: Context) -> None:
        super().__init__(config, context)
        self.q_norm = nn.LayerNorm(context.head_dim, eps=EPS)
        self.k_norm = nn.LayerNorm(context.head_dim, eps=EPS)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(
            layer_norm(q, self.q_norm.weight, self.q_norm.bias, EPS),
            layer_norm(k, self.k_norm.weight, self.k_norm.bias, EPS),
            v,
            scale=self.context.head_dim**-0.5,
        )

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        normed = []
        for tensor, norm in ((q, self.q_norm), (k, self.k_norm)):
            centred = tensor - tensor.mean(-1, keepdim=True)
            unit = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
            normed.append(unit * norm.weight.to(q.dtype) + norm.bias.to(q.dtype))
        return attend_explicitly(normed[0] @ normed[1].mT / math.sqrt(q.shape[-1]), v, call)
