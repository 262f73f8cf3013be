"""How many keys a query sees: for variants whose temperature depends on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .variant import Call


def visible_keys(q: Tensor, k: Tensor, call: Call) -> Tensor | int:
    """Number of keys that each query sees, at least 1.

    Args:
        q: (B, H, Nq, D); k: (B, H, Nk, D).
        call: padding mask, causality, and bias, whose entries of -inf hide keys.

    Returns:
        An int where it is the same for all queries, else an int64 tensor that broadcasts to
        (B, H, Nq, 1).
    """
    nq, nk = q.shape[-2], k.shape[-2]
    real = call.key_padding_mask
    if call.bias is not None:
        visible = call.bias > -torch.inf
        visible = visible.expand(*visible.shape[:-1], nk)[(None,) * (4 - visible.dim())]
        if real is not None:
            visible = visible & real[:, None, None]
        if call.causal:
            rows = torch.arange(nk - nq, nk, device=q.device)[:, None]
            visible = visible & (torch.arange(nk, device=q.device) <= rows)
        return visible.sum(-1, keepdim=True).clamp_min(1)
    if call.causal:
        if real is None:
            return torch.arange(nk - nq + 1, nk + 1, device=q.device)[:, None]
        return real.cumsum(-1)[:, None, nk - nq :, None].clamp_min(1)
    return nk if real is None else real.sum(-1)[:, None, None, None].clamp_min(1)


def log_of(count: Tensor | int, like: Tensor) -> Tensor | float:
    """Natural logarithm of :func:`visible_keys`, in float32 or the wider dtype of `like`."""
    if isinstance(count, int):
        return math.log(max(count, 1))
    return count.to(torch.promote_types(like.dtype, torch.float32)).log()
