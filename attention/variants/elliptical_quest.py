"""Elliptical-QUEST: QUEST with channels weighted by how much the values change between layers.

    logit_ij = sum_c q_ic m_c k_jc / |k_j|

m as in `elliptical`; no factor 1/sqrt(d). Layer 0 is QUEST. The paper states neither what
layer 0 is nor the scaling of m; QUEST and the maximum are assumed.

Source: arXiv 2604.00199, where it is written S Q' M K' with S = diag(|q_i|) and unit rows in Q':
S Q' = Q, so the queries need no normalisation. Compared with its formula.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared
from .elliptical import EllipticalBase, EllipticalConfig


@dataclass(frozen=True)
class EllipticalQuestConfig(EllipticalConfig):
    """Options: those of `elliptical`."""


@register(
    "elliptical_quest",
    EllipticalQuestConfig,
    summary="(m * q) . k/|k|, m from the change of v between layers",
    source="QUEST 2026, arXiv 2604.00199",
)
class EllipticalQuest(EllipticalBase):
    """(m * q) . k/|k|, m from the change of v between layers."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(self.weigh(q, v, call), l2_normalize(k), v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        m = self.reference_metric(q, v, call)
        unit = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return attend_explicitly((q * m) @ unit.mT, v, call)
