"""Softmaxes of scores that bend, by PyTorch's FlexAttention, on GPUs that have its derivative.

It makes one kernel of the change of the scores, the masks and the softmax, forward and backward,
and keeps no more of a row than its log-sum-exp. The alternative is `attention/mapped.py`, which
serves what is left out here: other devices (on a CPU FlexAttention has no backward pass), dropout,
a bias that learns, other maps than a softmax.

Tests compare what is handed over, the functions of scores and of masks, with the reference, in
FlexAttention's plain operations on a CPU, forward and backward. The kernels that a GPU makes of it
are for `make test-gpu`: **they were not run yet**.

The masks are made as B x Nq x Nk booleans, reduced to blocks, and let go of; nothing of the size of
the scores is kept for the backward pass.

Source: PyTorch, `torch.nn.attention.flex_attention` (torch 2.6 and newer).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .compiling import not_compiled
from .maps import SoftmaxMap
from .variant import Call, Prepared

CAPABILITY = (8, 0)
"""Least compute capability, that of PyTorch's own tests of FlexAttention."""

WIDTHS = (16, 32, 64, 128, 256)
"""Of keys and values, which its kernels take in every version."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

KERNELS = 128
"""How many are compiled: for masks or none, gradients or none, dtypes, numbers of a map, one size
and then any."""

Index = Tensor
"""Of example, head, query or key: a scalar."""


def fits(prepared: Prepared, call: Call, dropout: float) -> bool:
    """Whether a call can go through FlexAttention, here."""
    return has_derivative(prepared.q.device) and expressible(prepared, call, dropout)


def expressible(prepared: Prepared, call: Call, dropout: float) -> bool:
    """Whether a call can be said in FlexAttention's terms, wherever it runs."""
    q, k, v, bias = *prepared[:3], call.bias
    learns = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    return (
        isinstance(prepared.map, SoftmaxMap)
        and dropout == 0.0
        and not learns
        # With more keys than queries the order would depend on a number that changes.
        and not (call.causal and q.shape[-2] != k.shape[-2])
        and q.dtype == k.dtype == v.dtype
        and q.dtype in DTYPES
        and {q.shape[-1], v.shape[-1]} <= set(WIDTHS)
        and not torch._C._are_functorch_transforms_active()
    )


def has_derivative(device: torch.device) -> bool:
    """Whether FlexAttention has forward and backward kernels on a device."""
    return device.type == "cuda" and _is_capable(device)


@functools.cache
def _is_capable(device: torch.device) -> bool:
    return (
        torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= CAPABILITY
        and importlib.util.find_spec("triton") is not None
        # Triton builds what starts its kernels where it runs.
        and ("CC" in os.environ or any(map(shutil.which, ("gcc", "clang"))))
    )


@not_compiled
def attend(prepared: Prepared, call: Call) -> Tensor:
    """softmax(map(scale q k^T) + bias, over the visible keys) v, (B, H, Nq, Dv).

    Args:
        prepared: with a map that only transforms the scores.
        call: padding mask, bias and causality.
    """
    q, k, v, scale, _, map_ = prepared
    assert isinstance(map_, SoftmaxMap)
    bias = call.bias
    if bias is not None:
        bias = bias.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
    scores, blocks = score_function(map_, bias), visible_blocks(q, k, call)
    with torch.autocast(q.device.type, enabled=False), _settings():
        out: Tensor = compiled()(q, k, v, score_mod=scores, block_mask=blocks, scale=scale)
    return out


@functools.cache
def compiled() -> Callable[..., Any]:
    """FlexAttention, compiled; uncompiled it would store all scores, so that is an error."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)


def _settings() -> AbstractContextManager[Any]:
    """Of the compiler: a kernel for each number in a map, which it would else make a variable."""
    from torch._dynamo import config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    settings: AbstractContextManager[Any] = config.patch({"specialize_float": True, limit: KERNELS})
    return settings


def score_function(map_: SoftmaxMap, bias: Tensor | None) -> Callable[..., Tensor]:
    """From a score to what the softmax is taken of.

    Args:
        map_: what bends the scores.
        bias: (B, H, Nq, Nk), added afterwards; may hold -inf.
    """

    def logit(score: Tensor, example: Index, head: Index, query: Index, key: Index) -> Tensor:
        score = map_.transform(score)
        return score if bias is None else score + bias[example, head, query, key]

    return logit


def visible_blocks(q: Tensor, k: Tensor, call: Call) -> Any:
    """Padding and causal order as a mask of FlexAttention; None if every key is seen."""
    from torch.nn.attention.flex_attention import create_block_mask

    real, causal = call.key_padding_mask, call.causal
    if real is None and not causal:
        return None

    def visible(example: Index, head: Index, query: Index, key: Index) -> Tensor:
        if real is None:
            return query >= key
        seen = real[example, key]
        return seen & (query >= key) if causal else seen

    batch = None if real is None else q.shape[0]
    return create_block_mask(visible, batch, None, q.shape[-2], k.shape[-2], device=q.device)
