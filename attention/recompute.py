"""Attention on a CPU that recomputes its scores, for what the fused CPU kernel cannot do.

With dropout, a bias that learns, or values narrower than keys, PyTorch's CPU path stores several
tensors of the size of all scores. This one goes over blocks of them, stores none, and computes
each block again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .maps import lowest_of

BLOCK_SCORES = 2**18
"""Scores of a block: 1 MB in float32, so that its temporaries stay in a core's cache."""

ACCELERATOR_BLOCKS = 64
"""How many times larger a block is on other devices, which have more to do at once."""


class RecomputedAttention(torch.autograd.Function):
    """dropout(softmax(scale q k^T + mask)) v, zeros for a query that sees no key.

    The dropout mask M (0 or 1) is drawn again in the backward pass from the seed. With P the
    weights, p those of the sink, and s = 1 / (1 - dropout):

        O = s (P M) V              dV = s (P M)^T dO
        dS = P (s M (dO V^T) - rowsum(dO O))     dQ = scale dS K     dK = scale dS^T Q
        dsink = -sum(p rowsum(dO O))

    Arguments: q (B, H, Nq, D), k (B, H, Nk, D), v (B, H, Nk, Dv); mask of four axes, each of full
    length or one, bool (True = visible) or float to be added, or None; sink, broadcastable to
    (H, 1, 1), or None; scale; dropout; seed.
    """

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        sink: Tensor | None,
        scale: float,
        dropout: float,
        seed: int,
    ) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        batch_size, heads, nq, _ = q.shape
        out = v.new_empty(batch_size, nq, heads, v.shape[-1]).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            for batch, rows in blocks(q, k):
                part = None if mask is None else part_of(mask, batch, rows)
                scores = scaled(q[batch, :, rows], scale) @ k[batch].mT
                weights, _, hidden = masked_softmax(scores, part, sink)
                if dropout:
                    weights.mul_(draw_kept(weights.shape, dropout, generator, weights.dtype))
                block = (weights @ v[batch]).mul_(1.0 / (1.0 - dropout))
                out[batch, :, rows] = block if hidden is None else block.masked_fill_(hidden, 0.0)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, mask, sink, *ctx.numbers = inputs
        ctx.save_for_backward(q, k, v, mask, sink, output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, sink, out = ctx.saved_tensors
        scale, dropout, seed = ctx.numbers
        generator = torch.Generator().manual_seed(seed)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_mask = torch.zeros_like(mask) if ctx.needs_input_grad[3] else None
        grad_sink = torch.zeros_like(sink) if ctx.needs_input_grad[4] else None
        with torch.autocast("cpu", enabled=False):
            for batch, rows in blocks(q, k):
                part = None if mask is None else part_of(mask, batch, rows)
                scores = scaled(q[batch, :, rows], scale) @ k[batch].mT
                weights, of_sink, hidden = masked_softmax(scores, part, sink)
                grad_out = grad[batch, :, rows]
                if hidden is not None:
                    grad_out = grad_out.masked_fill(hidden, 0.0)
                along = (grad_out * out[batch, :, rows]).sum(-1, keepdim=True)
                if grad_sink is not None and of_sink is not None:
                    grad_sink -= (of_sink * along).sum_to_size(grad_sink.shape)
                grad_out = grad_out * (1.0 / (1.0 - dropout))
                grad_weights = grad_out @ v[batch].mT
                dropped = weights
                if dropout:
                    kept = draw_kept(weights.shape, dropout, generator, weights.dtype)
                    grad_weights.mul_(kept)
                    dropped = weights * kept
                grad_v[batch] += dropped.mT @ grad_out
                grad_scores = grad_weights.sub_(along).mul_(weights)
                grad_q[batch, :, rows] = (grad_scores @ k[batch]).mul_(scale)
                grad_k[batch] += (grad_scores.mT @ q[batch, :, rows]).mul_(scale)
                if grad_mask is not None:
                    shared = part_of(grad_mask, batch, rows)
                    shared += grad_scores.sum_to_size(shared.shape)
        return grad_q, grad_k, grad_v, grad_mask, grad_sink, None, None, None


def draw_kept(
    shape: torch.Size,
    dropout: float,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """0 with probability `dropout`, else 1.

    Numbers and not booleans: a product with booleans makes numbers of them first, which takes
    several times as long as the product. Each number is decided by 8 bits where the rate is a
    multiple of 1/256, and else by 32: `bernoulli_` spends 64.
    """
    bits, integers = (8, torch.int8) if (dropout * 2**8).is_integer() else (32, torch.int32)
    words = torch.empty((shape.numel() * bits + 63) // 64, dtype=torch.int64, device=device)
    draws = words.random_(-(2**63), None, generator=generator).view(integers)
    least_kept = round(dropout * 2**bits) - 2 ** (bits - 1)
    kept = torch.empty(shape, dtype=dtype, device=device)
    return torch.ge(draws[: shape.numel()].view(shape), least_kept, out=kept)


def blocks(q: Tensor, k: Tensor) -> list[tuple[slice, slice]]:
    """Slices of the batch and of the query rows of about :data:`BLOCK_SCORES` scores each."""
    batch_size, heads, nq, _ = q.shape
    scores_of_row = heads * k.shape[-2]
    wanted = block_scores(q.device)
    examples = max(1, wanted // (scores_of_row * nq))
    rows = max(1, min(nq, wanted // scores_of_row))
    return [
        (slice(example, example + examples), slice(row, row + rows))
        for example in range(0, batch_size, examples)
        for row in range(0, nq, rows)
    ]


def block_scores(device: torch.device) -> int:
    """Scores of a block on a device."""
    return BLOCK_SCORES if device.type == "cpu" else BLOCK_SCORES * ACCELERATOR_BLOCKS


def part_of(mask: Tensor, batch: slice, rows: slice) -> Tensor:
    """The block's part of a mask, a view."""
    everything = slice(None)
    return mask[
        batch if mask.shape[0] > 1 else everything,
        :,
        rows if mask.shape[2] > 1 else everything,
    ]


def scaled(q: Tensor, scale: float) -> Tensor:
    """q * scale, or q itself where that is the same."""
    return q if scale == 1.0 else q * scale


def masked_softmax(
    scores: Tensor, mask: Tensor | None, sink: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Softmax of scores (B, H, Nq, Nk), which are overwritten, under a mask.

    Returns:
        Weights; the weight of the sink, (B, H, Nq, 1); and which rows see no key, broadcastable
        to (B, H, Nq, 1): the weights of those are without meaning but finite. None where there is
        no sink or no mask.
    """
    hidden = None
    if mask is not None:
        # Added also for a mask of booleans: filling takes ten times as long on a CPU.
        lowest = lowest_of(scores.dtype)
        if mask.dtype == torch.bool:
            hidden = ~mask.any(-1, keepdim=True)
            added = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, lowest)
        else:
            hidden = (mask == -torch.inf).all(-1, keepdim=True)
            added = mask.clamp_min(lowest)
        scores.add_(added)
    if sink is None:
        return scores.softmax(-1), None, hidden
    column = sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, column], -1).softmax(-1)
    return weights[..., :-1], weights[..., -1:], hidden
