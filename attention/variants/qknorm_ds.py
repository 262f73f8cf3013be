"""QKNorm-DS: unit queries and keys, each channel times a learned scale shared by the heads.

    logit_ij = (c_q * q_i / |q_i|) . (c_k * k_j / |k_j|),  c_q and c_k vectors of the head's width

No factor 1/sqrt(d). With c_q = c_k = d^(1/4), the default start, this is RMS normalisation of
q and k with the usual 1/sqrt(d), the form of ViT-22B at its start; with ones the logits start
within [-1, 1].

Source: arXiv 2604.00199, which cites Dehghani et al. 2023 (ViT-22B), arXiv 2302.05442; neither
states an initial value, so it is an option. Compared with its formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Context, Prepared, Variant


@dataclass(frozen=True)
class QKNormDSConfig:
    """Options.

    Args:
        init: initial value of c_q and c_k: `"fourth_root"` for d^(1/4), `"unit"` for 1, or a
            number.
    """

    init: float | int | str = "fourth_root"

    def __post_init__(self) -> None:
        if isinstance(self.init, str) and self.init not in ("fourth_root", "unit"):
            raise ValueError(
                f"init={self.init!r} is unknown; allowed: 'fourth_root', 'unit', or a number"
            )
        if isinstance(self.init, int):  # 1 and 1.0 are one configuration
            object.__setattr__(self, "init", float(self.init))

    def value(self, head_dim: int) -> float:
        """The initial value for a head of this width."""
        if isinstance(self.init, str):
            return head_dim**0.25 if self.init == "fourth_root" else 1.0
        return float(self.init)


@register(
    "qknorm_ds",
    QKNormDSConfig,
    summary="(c_q * q/|q|) . (c_k * k/|k|), c_q and c_k learned",
    source="QUEST 2026, arXiv 2604.00199, after ViT-22B, arXiv 2302.05442",
)
class QKNormDS(Variant):
    """(c_q * q/|q|) . (c_k * k/|k|), c_q and c_k learned."""

    def __init__(self, config: QKNormDSConfig, context: Context) -> None:
        super().__init__(config, context)
        start = config.value(context.head_dim)
        self.query_scale = nn.Parameter(torch.full((context.head_dim,), start))
        self.key_scale = nn.Parameter(torch.full((context.head_dim,), start))

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        # The two scales meet in every product of channels: one pass over q does for both.
        scaled_q = (l2_normalize(q) * (self.query_scale * self.key_scale)).to(q.dtype)
        return Prepared(scaled_q, l2_normalize(k), v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        unit_q = q / q.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        unit_k = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        scaled_q = unit_q * self.query_scale.to(q.dtype)
        scaled_k = unit_k * self.key_scale.to(k.dtype)
        return attend_explicitly(scaled_q @ scaled_k.mT, v, call)
