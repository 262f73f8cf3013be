"""QK-Clip: after a step, heads whose scores grew too large get smaller queries and keys.

    logit_ij = q_i . k_j / sqrt(d)
    after each optimizer step, for every head with S > t:   W_q, W_k <- sqrt(t / S) W_q, W_k

S is the largest q_i . k_j / sqrt(d) of the head among the pairs that saw each other in the forward
passes of training since the step before, t an option, 100 by default. Biases of the projections
are scaled with the weights, so that the same tokens then have a largest score of t. It is
`standard` while no score exceeds t.

Source: Kimi K2 (2025), arXiv 2507.20534, MuonClip; compared with its description. There it goes
with the Muon optimizer, here with that of the recipe, whose state is not scaled.
Cost: S takes a product of all queries and keys, in blocks, in every forward pass of training.
Where replicas train on parts of a batch (`torch.distributed`), S is the largest of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import kernels
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
class QKClipConfig:
    """Options.

    Args:
        threshold: t, the largest score that is left alone.
    """

    threshold: float = 100.0

    def __post_init__(self) -> None:
        if not self.threshold > 0.0:
            raise ValueError(f"threshold={self.threshold} must be above 0")


@register(
    "qk_clip",
    QKClipConfig,
    summary="q . k / sqrt(d); W_q, W_k shrunk after a step where a score exceeds t",
    source="Kimi K2 2025, arXiv 2507.20534",
)
class QKClip(Variant):
    """q . k / sqrt(d); W_q, W_k shrunk after a step where a score exceeds t."""

    capabilities = ALL_CAPABILITIES | {NEEDS_WEIGHTS, NEEDS_STEPS}
    peaks: Tensor

    def __init__(self, config: QKClipConfig, context: Context) -> None:
        super().__init__(config, context)
        self.register_buffer("peaks", torch.full((context.heads,), -torch.inf), persistent=False)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        prepared = Prepared(q, k, v, scale=self.context.head_dim**-0.5)
        # A functional transform is no training step, and could not be left with what it saw.
        if self.training and not torch._C._are_functorch_transforms_active():
            peaks = kernels.peak_scores(prepared, call)
            self.peaks.copy_(torch.maximum(self.peaks, peaks.to(self.peaks.dtype)))
        return prepared

    @torch.no_grad()
    def after_step(self, projections: Projections) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.peaks, torch.distributed.ReduceOp.MAX)
        threshold = self.config.threshold
        ratio = torch.where(self.peaks > threshold, threshold / self.peaks, 1.0)
        tensors = [(name, t) for name in ("q", "k") for t in projections[name] if t is not None]
        for name, tensor in tensors:
            if tensor.grad_fn is not None and not tensor._is_view():
                raise ValueError(
                    f"attention='qk_clip' cannot scale the projection to {name}: it is computed "
                    "from other parameters; remove its parametrization"
                )
        for _, tensor in tensors:
            of_heads = tensor.detach().view(self.context.heads, -1)
            of_heads.mul_(ratio.sqrt().to(tensor.dtype)[:, None])
        self.peaks.fill_(-torch.inf)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return attend_explicitly(q @ k.mT / math.sqrt(q.shape[-1]), v, call)
