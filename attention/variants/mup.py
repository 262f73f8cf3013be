"""mu-P scaling: the scale of the scores falls with the width of a head, not with its root.

    logit_ij = q_i . k_j / d

Trained queries and keys are correlated, so that their product grows like d; divided by sqrt(d) it
would grow with the width of the model, and the learning rate that is right for a small model would
not be for a large one. Equals `standard` where d = 1, and for any d on queries times sqrt(d).

Source: Yang et al. 2022 (Tensor Programs V), arXiv 2203.03466; compared with its formula. The rest
of mu-P (initial values, learning rates by width) is no matter of the attention and not done here.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..reference import attend_explicitly
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class MupConfig:
    """No options."""


@register("mup", MupConfig, summary="q . k / d", source="Yang et al. 2022, arXiv 2203.03466")
class Mup(Variant):
    """q . k / d."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=1.0 / self.context.head_dim)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend_explicitly(q @ k.mT / q.shape[-1], v, call)
