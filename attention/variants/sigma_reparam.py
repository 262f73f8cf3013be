"""sigma-reparam: every projection has a norm of its own, learned as one number.

    W^ = (g / sigma(W)) W,   logit_ij = q_i . k_j / sqrt(d)

for the projections of queries, keys, values and output; sigma is the largest singular value, with
its gradient. g, one a projection, starts at sigma(W), so that training starts as `standard`; with
g = sigma(W) it is `standard`. Biases are as they are.

sigma is estimated as |W u| with a unit vector u, exact at the start; after every optimizer step
one power iteration brings u after W (`attention.after_step`). That |W u| is taken with the present
W makes a stale u harmless. Without the power iterations W^ has a norm near g instead of g. A
weight of zeros is used as it is.

Source: Zhai et al. 2023, arXiv 2303.06296; compared with its formula and with
apple/ml-sigma-reparam vision/layers.py, whose start of g is used here, and which iterates in each
forward pass instead of after each step. On purpose different: the published method treats all
linear layers of a model, this one those of the attention; a layer whose q, k and v are one weight
is treated as three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..normalize import EPS, widen
from ..reference import attend_explicitly
from ..registry import register
from ..variant import (
    ALL_CAPABILITIES,
    NEEDS_STEPS,
    NEEDS_WEIGHTS,
    Call,
    Context,
    Prepared,
    Projections,
    Variant,
)


@dataclass(frozen=True)
class SigmaReparamConfig:
    """No options."""


@register(
    "sigma_reparam",
    SigmaReparamConfig,
    summary="q . k / sqrt(d); projections (g / sigma(W)) W, g learned",
    source="Zhai et al. 2023, arXiv 2303.06296",
)
class SigmaReparam(Variant):
    """q . k / sqrt(d); projections (g / sigma(W)) W, g learned."""

    capabilities = ALL_CAPABILITIES | {NEEDS_WEIGHTS, NEEDS_STEPS}

    def __init__(self, config: SigmaReparamConfig, context: Context) -> None:
        super().__init__(config, context)
        assert context.projections is not None
        self.gain = nn.ParameterDict(
            {name: nn.Parameter(torch.ones(())) for name in context.projections}
        )
        for name, (_, width_in) in context.projections.items():
            direction = nn.functional.normalize(torch.randn(width_in), dim=0)
            self.register_buffer(f"direction_{name}", direction)

    def sigma(self, projection: str, weight: Tensor) -> Tensor:
        """Estimate of the largest singular value of a weight (out, in), with its gradient."""
        wide = widen(weight)
        with torch.autocast(weight.device.type, enabled=False):
            direction = self.get_buffer(f"direction_{projection}").to(wide.dtype)
            sigma: Tensor = torch.linalg.vector_norm(wide @ direction)
        return sigma

    def reparametrize(self, projection: str, weight: Tensor) -> Tensor:
        factor: Tensor = self.gain[projection] / _or_one(self.sigma(projection, weight))
        return weight * factor.to(weight.dtype)

    @torch.no_grad()
    def adopt(self, projections: Projections) -> None:
        for name, (weight, _) in projections.items():
            _, values, rows = torch.linalg.svd(widen(weight), full_matrices=False)
            self.get_buffer(f"direction_{name}").copy_(rows[0])
            self.gain[name].copy_(_or_one(values[0]))

    @torch.no_grad()
    def after_step(self, projections: Projections) -> None:
        for name, (weight, _) in projections.items():
            direction, wide = self.get_buffer(f"direction_{name}"), widen(weight)
            moved = wide.mT @ (wide @ direction.to(wide.dtype))
            norm = torch.linalg.vector_norm(moved)
            # A weight of zeros has no direction: the old one stays.
            direction.copy_(torch.where(norm > EPS, moved / norm, direction))

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, scale=self.context.head_dim**-0.5)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend_explicitly(q @ k.mT / math.sqrt(q.shape[-1]), v, call)


def _or_one(sigma: Tensor) -> Tensor:
    return torch.where(sigma > EPS, sigma, 1.0)
