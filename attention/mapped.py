"""Attention with another map than the softmax, in blocks that are computed again when needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .maps import ScoreMap, mapped_weights
from .recompute import blocks, draw_kept, part_of


class MappedAttention(torch.autograd.Function):
    """dropout(map(scale q k^T, mask)) v, zeros for a query that sees no key.

    Nothing of the size of all scores is kept. The backward pass computes the weights of a block
    again and leaves the derivative of the map to autograd; the dropout mask is drawn again from
    the seed.

    Arguments: q (B, H, Nq, D), k (B, H, Nk, D), v (B, H, Nk, Dv); mask of four axes, each of full
    length or one, bool (True = visible) or float to be added, or None; map; scale; dropout; seed.
    """

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        map_: ScoreMap,
        scale: float,
        dropout: float,
        seed: int,
    ) -> Tensor:
        generator = torch.Generator(q.device).manual_seed(seed)
        batch_size, heads, nq, _ = q.shape
        out = v.new_empty(batch_size, nq, heads, v.shape[-1]).transpose(1, 2)
        with torch.autocast(q.device.type, enabled=False):
            for batch, rows in blocks(q, k):
                scores = (q[batch, :, rows] * scale) @ k[batch].mT
                part = None if mask is None else part_of(mask, batch, rows)
                weights, hidden = mapped_weights(map_, scores, part)
                if dropout:
                    weights = weights * draw_kept(
                        weights.shape, dropout, generator, weights.dtype, q.device
                    )
                block = (weights @ v[batch]).mul_(1.0 / (1.0 - dropout))
                out[batch, :, rows] = block if hidden is None else block.masked_fill_(hidden, 0.0)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, mask, *ctx.settings = inputs
        ctx.save_for_backward(q, k, v, mask)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask = ctx.saved_tensors
        map_, scale, dropout, seed = ctx.settings
        generator = torch.Generator(q.device).manual_seed(seed)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_mask = torch.zeros_like(mask) if ctx.needs_input_grad[3] else None
        with torch.autocast(q.device.type, enabled=False):
            for batch, rows in blocks(q, k):
                leaves = [((q[batch, :, rows] * scale) @ k[batch].mT).requires_grad_()]
                part = None if mask is None else part_of(mask, batch, rows).detach()
                if grad_mask is not None and part is not None:
                    leaves.append(part.requires_grad_())
                with torch.enable_grad():
                    weights, hidden = mapped_weights(map_, leaves[0], part)
                grad_out = grad[batch, :, rows] * (1.0 / (1.0 - dropout))
                if hidden is not None:
                    grad_out.masked_fill_(hidden, 0.0)
                grad_weights = grad_out @ v[batch].mT
                dropped = weights.detach()
                if dropout:
                    kept = draw_kept(weights.shape, dropout, generator, weights.dtype, q.device)
                    grad_weights.mul_(kept)
                    dropped = dropped * kept
                grad_v[batch] += dropped.mT @ grad_out
                grad_scores, *of_mask = torch.autograd.grad(weights, leaves, grad_weights)
                grad_q[batch, :, rows] = (grad_scores @ k[batch]).mul_(scale)
                grad_k[batch] += (grad_scores.mT @ q[batch, :, rows]).mul_(scale)
                if grad_mask is not None:
                    shared = part_of(grad_mask, batch, rows)
                    shared += of_mask[0]
        return grad_q, grad_k, grad_v, grad_mask, None, None, None, None
