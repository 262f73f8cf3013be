"""QUEST: keys on the unit sphere, the norm of a query is the sharpness of its attention.

    logit_ij = q_i . k_j / |k_j|

No factor 1/sqrt(d) and no learned scale (C = 1). |logit_ij| <= |q_i|. Other mechanisms that leave
these scores to themselves can be put on top, see :class:`OnQuest`.

Source: arXiv 2604.00199; no code was published with it, so this is compared with its formula.
Numerical notes: the kernel's default scale is overridden. A zero key has logit 0 and no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..normalize import l2_normalize
from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class QuestConfig:
    """No options."""


@register("quest", QuestConfig, summary="q . k/|k|", source="QUEST 2026, arXiv 2604.00199")
class Quest(Variant):
    """q . k/|k|."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, l2_normalize(k), v, scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        unit = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return attend_explicitly(q @ unit.mT, v, call)


class OnQuest(Variant):
    """Puts another variant on the scores of QUEST: `class Both(OnQuest, Other)`.

    Other keeps the scores of `standard` and works on what becomes of them, on the values or on the
    output. QUEST is `standard` with unit keys and without its factor 1/sqrt(d).
    """

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        # The next class in the order of inheritance is the other variant.
        prepared = super().prepare(q, l2_normalize(k), v, call)  # type: ignore[safe-super]
        return prepared._replace(scale=1.0)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        unit = k / k.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        q = q * math.sqrt(q.shape[-1])
        return super().reference(q, unit, v, call)  # type: ignore[safe-super]
