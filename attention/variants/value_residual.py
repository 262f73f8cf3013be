"""Value residual (ResFormer): every layer mixes its values with those of the first.

    v'_l = a v_0 + (1 - a) v_l,   logit_ij = q_i . k_j / sqrt(d)

v_0 are the projected values of layer 0, with their gradient; layer 0 itself is `standard`. a is an
option, 1/2 by default; with 0 all layers are `standard`. No parameters.

Source: Zhou et al. 2024, arXiv 2410.17897, the plain form with two halves; compared with its
formula and with Zcchill/Value-Residual-Learning src/modeling/modeling_llama_resformer.py. The
paper's learned and sparse mixtures are not offered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..reference import attend_explicitly
from ..registry import register
from ..variant import ALL_CAPABILITIES, NEEDS_STATE, Call, Prepared, Variant


@dataclass(frozen=True)
class ValueResidualConfig:
    """Options.

    Args:
        first: a, the part of the first layer's values.
    """

    first: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.first <= 1.0:
            raise ValueError(f"first={self.first} must be from 0 to 1")


@register(
    "value_residual",
    ValueResidualConfig,
    summary="q . k / sqrt(d); v mixed with the first layer's",
    source="Zhou et al. 2024, arXiv 2410.17897",
)
class ValueResidual(Variant):
    """q . k / sqrt(d); v mixed with the first layer's."""

    capabilities = ALL_CAPABILITIES | {NEEDS_STATE}
    averages_values = False

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        first = self._first_values(v, call)
        if first is not None:
            v = v.lerp(first, self.config.first)
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5)

    def _first_values(self, v: Tensor, call: Call) -> Tensor | None:
        """The values of layer 0; None in layer 0."""
        if call.state is not None:
            return call.state.first_values(self.context.layer, v)
        if self.context.num_layers > 1:
            raise ValueError("state: the values of the first layer are needed; pass the state")
        return None

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        first, part = self._first_values(v, call), self.config.first
        mixed = v if first is None else part * first + (1.0 - part) * v
        return attend_explicitly(q @ k.mT / math.sqrt(q.shape[-1]), mixed, call)
