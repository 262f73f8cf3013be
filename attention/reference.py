"""Explicit attention in plain torch: what the references of the variants share.

Independent of :mod:`attention.kernels`, so that each checks the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .variant import Call


def attend_explicitly(logits: Tensor, v: Tensor, call: Call) -> Tensor:
    """Softmax over the keys a query may see, applied to the values.

    Args:
        logits: (B, H, Nq, Nk), scaled, before bias and masks.
        v: (B, H, Nk, D).
        call: padding mask, bias and causality.

    Returns:
        (B, H, Nq, D); zero for queries that see no key.
    """
    logits = visible_logits(logits, call)
    peak = logits.amax(-1, keepdim=True)
    weights = torch.exp(logits - peak.masked_fill(peak == -torch.inf, 0.0).detach())
    total = weights.sum(-1, keepdim=True)
    return (weights / total.masked_fill(total == 0.0, 1.0)) @ v


def visible_logits(logits: Tensor, call: Call) -> Tensor:
    """Logits (B, H, Nq, Nk) with bias; -inf where a query does not see a key."""
    nq, nk = logits.shape[-2:]
    visible = torch.ones(nq, nk, dtype=torch.bool, device=logits.device)
    if call.causal:
        rows = torch.arange(nk - nq, nk, device=logits.device)[:, None]
        visible = torch.arange(nk, device=logits.device) <= rows
    visible = visible.expand(logits.shape)
    if call.key_padding_mask is not None:
        visible = visible & call.key_padding_mask[:, None, None, :]
    if call.bias is not None:
        visible = visible & (call.bias > -torch.inf)
        logits = logits + call.bias.to(logits.dtype)
    return logits.masked_fill(~visible, -torch.inf)
