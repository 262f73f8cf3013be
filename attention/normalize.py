"""Normalisation of queries and keys, shared by the variants.

Half-precision input is normalised in float32 and returned in its own dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-12
"""Lower bound of the norm in the division, that of `F.normalize`."""


def l2_normalize(x: Tensor) -> Tensor:
    """x / max(|x|, 1e-12) over the last axis.

    A vector shorter than the bound (an exactly zero key, as padding gives) counts as constant in
    the backward pass: its gradient is zero, where that of `F.normalize` is 1e12 times as
    large as the incoming one.

    Args:
        x: (..., D), any floating dtype.
    """
    if x.dim() == 4 and x.stride(1) < x.stride(2):
        # Heads lie beside each other, as a projection leaves them: on a CPU, all that follows is
        # a fifth to a third faster in the order of the memory.
        return _normalized(x.transpose(1, 2)).transpose(1, 2)
    return _normalized(x)


def _normalized(x: Tensor) -> Tensor:
    normalized: Tensor = _L2Normalize.apply(x)[0]  # type: ignore[no-untyped-call]
    return normalized


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm over the last axis with learned `weight` and `bias` of shape (D,)."""
    wide = widen(x)
    out = functional.layer_norm(wide, weight.shape, weight.to(wide.dtype), bias.to(wide.dtype), eps)
    return out.to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over the root of the mean of its squares, times a learned `weight` of shape (D,)."""
    wide = widen(x)
    out: Tensor = functional.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps)
    return out.to(x.dtype)


def widen(x: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class _L2Normalize(torch.autograd.Function):
    """Saves the result and the inverse norm, not its input.

    The fused kernel saves the result anyway, so that normalisation adds one number a vector to
    what is stored for the backward pass. The inverse norm is an output so that the derivative of
    the backward pass sees how it depends on the input.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = widen(x)
        inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp_min(EPS).reciprocal()
        return (wide * inverse).to(x.dtype), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_inverse: Tensor | None) -> Tensor | None:
        y, inverse = ctx.saved_tensors
        dtype, y = y.dtype, widen(y)
        inverse = torch.where(inverse < 0.999 / EPS, inverse, 0.0)
        total = None
        if grad is not None:
            # (grad - y (y . grad)) / norm in one buffer: on a CPU a fresh one costs more than a
            # pass over it.
            grad = widen(grad)
            total = y * grad
            along = total.sum(-1, keepdim=True)
            total = total.copy_(grad).addcmul_(y, along, value=-1.0).mul_(inverse)
        if grad_inverse is not None:
            through_inverse = y * (-grad_inverse * inverse.square())
            total = through_inverse if total is None else total + through_inverse
        return None if total is None else total.to(dtype)
