"""LogN scaling: scores grow with the logarithm of the number of keys.

    logit_ij = (log n_i / log n_train) q_i . k_j / sqrt(d)

n_i is the number of keys that query i sees (padded and hidden ones do not count); at
n_i = n_train, an option, this is `standard`. It keeps the entropy of the attention about the same
when sequences get longer.

Source: Chiang & Cholak 2022, arXiv 2202.12172 (log n), divided by log n_train as J. Su and the
first Qwen models do; Qwen scales only queries beyond n_train, and only after training, here every
length is scaled. Compared with its formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..counts import log_of, visible_keys
from ..reference import attend_explicitly, visible_logits
from ..registry import register
from ..variant import Call, Prepared, Variant


@dataclass(frozen=True)
class LognConfig:
    """Options.

    Args:
        train_length: n_train, the number of keys at which nothing changes.
    """

    train_length: int = 512

    def __post_init__(self) -> None:
        if not self.train_length > 1:
            raise ValueError(f"train_length={self.train_length} must be at least 2")


@register(
    "logn",
    LognConfig,
    summary="(log n / log n_train) q . k / sqrt(d), n keys visible",
    source="Chiang & Cholak 2022, arXiv 2202.12172",
)
class Logn(Variant):
    """(log n / log n_train) q . k / sqrt(d), n keys visible."""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        scale = self.context.head_dim**-0.5
        factor = log_of(visible_keys(q, k, call), q)
        factor = factor / math.log(self.config.train_length)
        if isinstance(factor, float):
            return Prepared(q, k, v, scale=scale * factor)
        return Prepared((q * factor).to(q.dtype), k, v, scale=scale)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        visible = visible_logits(logits, call) > -torch.inf
        n = visible.sum(-1, keepdim=True).clamp_min(1).to(q.dtype)
        return attend_explicitly(logits * n.log() / math.log(self.config.train_length), v, call)
