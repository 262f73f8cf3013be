"""1.5-entmax: a map between softmax and sparsemax; low scores get exactly no weight.

    w_ij = max(0, s_ij / 2 - tau_i)^2,   tau_i such that the row sums to one,
    s_ij = q_i . k_j / sqrt(d)

Additive biases are part of s. Equal scores give equal weights, as in `standard`; how many keys get
any depends on the spread of the scores.

Source: Peters et al. 2019, arXiv 1905.05702; deep-spin/entmax. Compared with its formula; the
reference sorts the row, as their exact algorithm does.
Numerical notes: tau is found by Newton's method on |max(0, s/2 - tau)| = 1, whose left side is
convex and falls with tau, from below: every step comes closer and none goes too far. Started where
one key alone would fill the row, 8 steps reach rounding for rows of 10,000 keys and more. One more
step, the only one that autograd sees, has the derivative of the exact tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..maps import ScoreMap
from ..reference import visible_logits
from ..registry import register
from ..variant import Call, Prepared, Variant

STEPS = 8


@dataclass(frozen=True)
class Entmax15Config:
    """No options."""


class Entmax15Map(ScoreMap):
    """max(0, s/2 - tau)^2 with the sum one."""

    def weights(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        halves = 0.5 * (logits - logits.detach().amax(-1, keepdim=True))
        fixed, tau = halves.detach(), torch.full_like(halves[..., :1], -1.0)
        for _ in range(STEPS):
            tau = _newton(fixed, tau)
        return (halves - _newton(halves, tau)).relu().square()


def _newton(halves: Tensor, tau: Tensor) -> Tensor:
    above = (halves - tau).relu()
    norm: Tensor = torch.linalg.vector_norm(above, dim=-1, keepdim=True)
    return tau + (norm - 1.0) * norm / above.sum(-1, keepdim=True)


@register(
    "entmax15",
    Entmax15Config,
    summary="max(0, s/2 - tau)^2, sum 1, s = q . k / sqrt(d)",
    source="Peters et al. 2019, arXiv 1905.05702",
)
class Entmax15(Variant):
    """max(0, s/2 - tau)^2, sum 1, s = q . k / sqrt(d)."""

    map = Entmax15Map()

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5, map=self.map)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = visible_logits(q @ k.mT / math.sqrt(q.shape[-1]), call)
        hidden = (logits == -torch.inf).all(-1, keepdim=True)
        halves = logits.masked_fill(hidden, 0.0).clamp_min(-1e6) / 2.0
        halves = halves - halves.amax(-1, keepdim=True)
        ranked = halves.sort(-1, descending=True).values
        counts = torch.arange(1, ranked.shape[-1] + 1, dtype=q.dtype, device=q.device)
        # With the largest m of a row alone: sum (r - tau)^2 = 1, the lower solution.
        mean, square = ranked.cumsum(-1) / counts, ranked.square().cumsum(-1) / counts
        inside = (1.0 / counts - (square - mean.square())).clamp_min(0.0)
        tau = mean - torch.where(inside > 0.0, inside, 1.0).sqrt() * (inside > 0.0)
        support = (tau <= ranked).sum(-1, keepdim=True)
        weights = (halves - tau.gather(-1, support - 1)).clamp_min(0.0).square()
        return weights.masked_fill(hidden, 0.0) @ v
