"""Elliptical-QUEST: QUEST with channels weighted by how much the values change between layers.

    logit_ij = sum_c q_ic m_c k_jc / |k_j|

m as in `elliptical`; no factor 1/sqrt(d). Layer 0 is QUEST. The paper states neither what
layer 0 is nor the scaling of m; QUEST and the maximum are assumed.

Source: arXiv 2604.00199, where it is written S Q' M K' with S = diag(|q_i|) and unit rows in Q':
S Q' = Q, so the queries need no normalisation. Compared with its formula.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import register
from .elliptical import Elliptical, EllipticalConfig
from .quest import OnQuest


@dataclass(frozen=True)
class EllipticalQuestConfig(EllipticalConfig):
    """Options: those of `elliptical`."""


@register(
    "elliptical_quest",
    EllipticalQuestConfig,
    summary="(m * q) . k/|k|, m from the change of v between layers",
    source="QUEST 2026, arXiv 2604.00199",
)
class EllipticalQuest(OnQuest, Elliptical):
    """(m * q) . k/|k|, m from the change of v between layers."""
