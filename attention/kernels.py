"""From prepared q, k, v to the output: the one place that chooses a kernel.

The choice never changes the result beyond rounding. On all paths a query that sees no key gives
zeros, and gradients without NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from . import flexible
from .compiling import not_compiled
from .mapped import MappedAttention
from .maps import add_mask, lowest_of, mapped_weights, probabilities_of
from .normalize import widen
from .recompute import RecomputedAttention, block_scores, draw_kept, masked_softmax, scaled
from .sinks import attend_with_sink, tensor_of, with_sink_as_key
from .variant import Call, Prepared

STORED_SCORES_LIMIT = 2**18
"""Scores (B x H x Nq x Nk) up to which they are stored where PyTorch's fused CPU kernel cannot be
used: 1 MB in float32. Measured (one core, dropout, forward and backward), the recomputing path
takes about the same time there and half of PyTorch's own at 2**25 scores."""


def attend(prepared: Prepared, call: Call, dropout: float = 0.0) -> Tensor:
    """softmax(scale q k^T + bias, over the visible keys) v, without storing scores.

    Args:
        prepared: queries, keys, values and what else the variant says.
        call: padding mask, bias and causality.
        dropout: probability of dropping an attention weight; 0 outside training.

    Returns:
        (B, M, Nq, Dv); M = H unless a head has several maps.
    """
    parts = split_maps(prepared)
    if len(parts) > 1:
        return _side_by_side([attend(part, call, dropout) for part in parts])
    q, k, v, scale, sink, _ = prepared
    if sink is not None and not _knows_sinks(prepared):
        return attend(*with_sink_as_key(prepared, call), dropout)
    if _fused_kernel_fits(prepared, call, dropout):
        mask, by_flag = _mask_and_flag(prepared, call)
        if q.shape[-1] < v.shape[-1]:
            # For the fused CPU kernel, which wants one width; zeros change no product.
            q, k = (functional.pad(t, (0, v.shape[-1] - t.shape[-1])) for t in (q, k))
        if sink is not None:
            return attend_with_sink(prepared._replace(q=q, k=k), mask, by_flag)
        return functional.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout, is_causal=by_flag, scale=scale
        )
    if q.shape[:-1].numel() * k.shape[-2] <= STORED_SCORES_LIMIT:
        return _attend_storing(prepared, call, dropout)
    if flexible.fits(prepared, call, dropout):
        return flexible.attend(prepared, call)
    out: Tensor = _attend_recomputing(prepared, call, dropout)
    return out


def masked_logits(prepared: Prepared, call: Call) -> Tensor:
    """(B, M, Nq, Nk) logits with bias; -inf where a query does not see a key."""
    parts = split_maps(prepared)
    if len(parts) > 1:
        return _side_by_side([masked_logits(part, call) for part in parts])
    scores = prepared.q @ prepared.k.mT * prepared.scale
    if prepared.map is not None:
        scores = prepared.map.transform(scores)
    return add_mask(scores, attention_mask(prepared, call, causal=call.causal))


def split_maps(prepared: Prepared) -> list[Prepared]:
    """One part for each map of a head, with the first, second, ... map of all heads."""
    q, k, heads = prepared.q, prepared.k, prepared.v.shape[1]
    count = q.shape[1] // heads
    if count == 1:
        return [prepared]
    return [prepared._replace(q=q[:, i::count], k=k[:, i::count]) for i in range(count)]


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Tensors (B, H, ...) of each part, back in the order of the maps."""
    return torch.stack(parts, 2).flatten(1, 2)


def weights_of(prepared: Prepared, logits: Tensor) -> Tensor:
    """Attention weights of logits (..., Nk) with the masks in them; zeros where all are -inf."""
    if prepared.map is not None:
        visible = logits > -torch.inf
        filled = logits.masked_fill(~visible, lowest_of(logits.dtype))
        hidden = ~visible.any(-1, keepdim=True)
        return prepared.map.weights(filled, visible).masked_fill(hidden, 0.0)
    if prepared.sink is None:
        return probabilities_of(logits)
    column = tensor_of(prepared.sink, logits.device).to(logits.dtype)
    column = column.expand(*logits.shape[:-1], 1)
    return probabilities_of(torch.cat([column, logits], -1))[..., 1:]


@torch.no_grad()
def peak_scores(prepared: Prepared, call: Call) -> Tensor:
    """(H,) largest scale q.k of each head among the visible pairs, -inf where there are none.

    Without bias, in blocks.
    """
    q, k, nq = prepared.q, prepared.k.mT, prepared.q.shape[-2]
    peaks = torch.full((q.shape[1],), -torch.inf, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return peaks
    step = max(1, block_scores(q.device) // (q.shape[:-2].numel() * k.shape[-1]))
    for start in range(0, nq, step):
        rows = torch.arange(start, min(nq, start + step), device=q.device)
        scores = q[..., start : start + step, :] @ k * prepared.scale
        mask = attention_mask(prepared, call, causal=call.causal, rows=rows)
        if mask is not None:
            hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
            scores = scores.masked_fill(hidden, -torch.inf)
        peaks = torch.maximum(peaks, scores.amax((0, 2, 3)).to(peaks.dtype))
    return peaks


def attention_mask(
    prepared: Prepared, call: Call, *, causal: bool, rows: Tensor | None = None
) -> Tensor | None:
    """All masks in one: bool (True = visible) or, with a bias, float with -inf; None if no mask.

    Args:
        prepared: for sizes, dtype and device.
        call: padding mask and bias.
        causal: whether the mask is to hold the causal order.
        rows: (R,) indices of the query rows wanted; None = all.

    Returns:
        Broadcastable to (B, H, Nq or R, Nk).
    """
    q, k = prepared.q, prepared.k
    nq, nk = q.shape[-2], k.shape[-2]
    visible = None
    if call.key_padding_mask is not None:
        visible = call.key_padding_mask[:, None, None, :]
    if causal:
        rows_at = torch.arange(nq, device=q.device) if rows is None else rows
        order = torch.arange(nk, device=q.device) <= rows_at[:, None] + (nk - nq)
        visible = order if visible is None else visible & order
    if call.bias is None:
        return visible
    # The fused CPU kernel takes masks of two or four axes and would store scores for others.
    bias = call.bias[(None,) * (4 - call.bias.dim())]
    if rows is not None and bias.shape[-2] != 1:
        bias = bias.index_select(-2, rows)
    bias = bias.to(q.dtype)
    return bias if visible is None else torch.where(visible, bias, -torch.inf)


def _mask_and_flag(prepared: Prepared, call: Call) -> tuple[Tensor | None, bool]:
    """Masks for a fused kernel, and its flag of causality.

    Kernels take the causal order as the flag, without a mask, or everything in one mask.
    """
    masked = call.key_padding_mask is not None or call.bias is not None
    by_flag = call.causal and prepared.q.shape[-2] == prepared.k.shape[-2] and not masked
    return attention_mask(prepared, call, causal=call.causal and not by_flag), by_flag


def _knows_sinks(prepared: Prepared) -> bool:
    """Whether the paths of a CPU can be called with a sink, by its fused kernel itself.

    That kernel does not check its input, and in functional transforms it runs sample by sample.
    """
    tensors = prepared.q, prepared.k, prepared.v
    return (
        prepared.q.device.type == "cpu"
        and len({tensor.dtype for tensor in tensors}) == 1
        and all(tensor.stride(-1) == 1 and tensor.numel() > 0 for tensor in tensors)
        and not torch._C._are_functorch_transforms_active()
    )


def _fused_kernel_fits(prepared: Prepared, call: Call, dropout: float) -> bool:
    """Whether PyTorch's fused kernel can be used; on a CPU it would silently store all scores."""
    if prepared.map is not None:
        return False
    if prepared.q.device.type != "cpu":
        return True
    bias_learns = call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled()
    return not (dropout > 0.0 or bias_learns or prepared.v.shape[-1] < prepared.q.shape[-1])


def _attend_storing(prepared: Prepared, call: Call, dropout: float) -> Tensor:
    """Plain operations: a fifth faster than PyTorch's own path, whose random numbers are slow."""
    wide = _widened(prepared)
    q, k, v, scale, sink, map_ = wide
    mask = attention_mask(wide, call, causal=call.causal)
    with torch.autocast(q.device.type, enabled=False):
        scores = scaled(q, scale) @ k.mT
        if map_ is None:
            column = None if sink is None else tensor_of(sink, q.device)
            weights, _, hidden = masked_softmax(scores, mask, column)
        else:
            weights, hidden = mapped_weights(map_, scores, mask)
        if dropout > 0.0:
            kept = draw_kept(weights.shape, dropout, dtype=weights.dtype, device=q.device)
            weights = weights * kept
        out = (weights @ v) * (1.0 / (1.0 - dropout))
    out = out if hidden is None else out.masked_fill(hidden, 0.0)
    return out.to(prepared.q.dtype)


def _widened(prepared: Prepared) -> Prepared:
    """Half precision as float32: float16 holds no number below all the logits that it can hold."""
    q, k, v = map(widen, prepared[:3])
    return prepared._replace(q=q, k=k, v=v)


@not_compiled
def _attend_recomputing(prepared: Prepared, call: Call, dropout: float) -> Tensor:
    wide = _widened(prepared)
    q, k, v, scale, sink, map_ = wide
    mask = attention_mask(wide, call, causal=call.causal)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
    seed = int(torch.randint(2**62, (), device="cpu")) if dropout > 0.0 else 0
    out: Tensor
    if map_ is None:
        column = None if sink is None else tensor_of(sink, q.device)
        out = RecomputedAttention.apply(  # type: ignore[no-untyped-call]
            q, k, v, mask, column, scale, dropout, seed
        )
    else:
        out = MappedAttention.apply(  # type: ignore[no-untyped-call]
            q, k, v, mask, map_, scale, dropout, seed
        )
    return out.to(prepared.q.dtype)
