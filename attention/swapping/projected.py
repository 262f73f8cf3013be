"""What attentions with one projection `qkv` and a projection `proj` have in common."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core import AttentionCore
from ..variant import Projections
from .classes import Exchanged


class Projected(Exchanged):
    """The projections of such an attention, as its variant sees and changes them."""

    core: AttentionCore

    num_heads: int
    qkv: nn.Linear
    proj: nn.Linear

    def projections(self) -> Projections:
        """Weight and bias of each projection, as views of the fused one."""
        weights = self.qkv.weight.chunk(3)
        bias: tuple[Tensor | None, ...] = (None,) * 3
        if self.qkv.bias is not None:
            bias = self.qkv.bias.chunk(3)
        found = dict(zip("qkv", zip(weights, bias, strict=True), strict=True))
        return {**found, "out": (self.proj.weight, self.proj.bias)}

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        tags = {"qkv": "qkv", "proj": "ov", "q_norm": "scale", "k_norm": "scale"}
        return {
            name: tags[name.split(".")[0]]
            for name, _ in self.named_parameters()
            if name.split(".")[0] in tags
        }

    def project_in(self, x: Tensor) -> Tensor:
        """Tokens (..., C) to queries, keys and values side by side, (..., 3 H D)."""
        if self.core.changes_weights:
            change, weights = self.core.variant.reparametrize, self.qkv.weight.chunk(3)
            weight = torch.cat([change(*each) for each in zip("qkv", weights, strict=True)])
            return functional.linear(x, weight, self.qkv.bias)
        out: Tensor = self.qkv(x)
        return out

    def project_out(self, x: Tensor) -> Tensor:
        """The heads side by side (..., H D) to (..., C)."""
        if self.core.changes_weights:
            weight = self.core.variant.reparametrize("out", self.proj.weight)
            return functional.linear(x, weight, self.proj.bias)
        out: Tensor = self.proj(x)
        return out

    def with_own_scale(self, q: Tensor) -> Tensor:
        """Queries (..., D) that keep a scale of the module's own where it is not 1 / sqrt(D)."""
        width = q.shape[-1]
        factor = float(getattr(self, "scale", width**-0.5)) * math.sqrt(width)
        return q if math.isclose(factor, 1.0) else q * factor
