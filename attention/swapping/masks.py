"""Masks of other libraries as those of this package."""

from __future__ import annotations

import torch
from torch import Tensor


def hidden_as_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask, True = hidden, as what is added to logits: 0 or -inf."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -torch.inf)


def split_padding(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """The padding mask of `nn.MultiheadAttention` as (real, bias).

    Args:
        mask: (B, Nk) bool, True = padding, or float, added to the logits.

    Returns:
        (B, Nk) bool, True = real token, and what remains of a float mask, (B, 1, 1, Nk).
    """
    if mask.dtype == torch.bool:
        return ~mask, None
    real = mask > -torch.inf
    return real, mask.masked_fill(~real, 0.0)[:, None, None]


def merge(*biases: Tensor | None) -> Tensor | None:
    """The sum of those that are there."""
    total = None
    for bias in biases:
        if bias is not None:
            total = bias if total is None else total + bias
    return total
