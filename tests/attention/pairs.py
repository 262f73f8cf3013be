"""Layers and inputs for tests that compare two computations of the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attention import AttentionCore
from tests.tolerances import assert_gradients, assert_values

B, H, N, D = 2, 3, 6, 8


def heads(*, tokens: int = N, width: int = D, seed: int = 0) -> list[Tensor]:
    """q, k, v of shape (B, H, tokens, width) in float64, leaves of autograd."""
    generator = torch.Generator().manual_seed(seed)
    shape = B, H, tokens, width
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]


def core(name: str, *, options: Mapping[str, Any] | None = None, **context: Any) -> AttentionCore:
    """A core in float64."""
    return AttentionCore(H, D, variant=name, options=options, **context).double()


def assert_equal(out: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Equal outputs, and equal gradients of the inputs for a fixed weighting of the outputs."""
    assert_values(out, expected, "value")
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    grads = torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs, retain_graph=True)
    for grad, want in zip(grads, wanted, strict=True):
        assert_gradients(grad, want, "gradient")
