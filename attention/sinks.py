"""Attention with a sink: a part of every row that goes to no key.

    w_ij = exp(s_ij) / (exp(b) + sum_j' exp(s_ij')),   b the logit of the sink

On a CPU the fused kernel hands out the log-sum-exp of every row beside the output, and its
derivative takes it back: with the sink added to it the kernel's derivative is that of the row with
the sink. So a sink costs a few operations on rows. Elsewhere it is what it stands for: one more
key, with a value of zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .variant import Call, Prepared

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SinkAttention(torch.autograd.Function):
    """Output and log-sum-exp, sink included, of PyTorch's fused CPU kernel.

    With L_i = log(exp(b) + sum_j exp(s_ij)) and O the output,

        w_ij = exp(s_ij - L_i)     dS_ij = w_ij ((dO V^T)_ij - dO_i . O_i)
        db = -sum_i exp(b - L_i) dO_i . O_i

    Arguments: q (B, H, Nq, D), k and v (B, H, Nk, D); sink (H, 1, 1) or (); float mask or None;
    whether causal; scale.
    """

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        # For a row that sees no key the kernel says 0: any number will do, its output is zero.
        out, without_sink = _forward(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        total = torch.logaddexp(without_sink, _as_row(sink, without_sink))
        return out.mul_((without_sink - total).exp_().unsqueeze(-1)), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, sink, mask, *ctx.settings = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, v, sink, mask, *output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, mask, out, total = ctx.saved_tensors
        causal, scale = ctx.settings
        grad_sink = None
        if ctx.needs_input_grad[3]:
            along = (grad * out).sum(-1).to(total.dtype)
            of_rows = (_as_row(sink, total) - total).exp_().mul_(along).neg_()
            grad_sink = of_rows.unsqueeze(-1).sum_to_size(sink.shape).to(sink.dtype)
        grads = _backward(grad, q, k, v, out, total, 0.0, causal, attn_mask=mask, scale=scale)
        return *grads, grad_sink, None, None, None


def attend_with_sink(prepared: Prepared, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention on a CPU, for what its fused kernel can do.

    Args:
        prepared: with a sink; equal widths of keys and values.
        mask: as of :func:`~attention.kernels.attention_mask`, without gradient.
        causal: whether token i sees the keys up to its own position; not with a mask.
    """
    q, k, v, scale, sink, _ = prepared
    assert sink is not None
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    out: Tensor = SinkAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, tensor_of(sink, q.device), mask, causal, scale
    )[0]
    return out


def tensor_of(sink: Tensor | float, device: torch.device) -> Tensor:
    """A sink as a tensor broadcastable to (H, 1, 1), in its own precision."""
    return sink if isinstance(sink, Tensor) else torch.tensor(sink, device=device)


def _as_row(sink: Tensor, rows: Tensor) -> Tensor:
    """The sink, broadcastable to rows (B, H, Nq)."""
    return sink.to(rows.dtype).reshape(-1, 1)


def with_sink_as_key(prepared: Prepared, call: Call) -> tuple[Prepared, Call]:
    """The same attention without a sink: its logit is the bias of a first key of zeros.

    The first one, so that the causal order, which counts from the last key, leaves it visible.
    """
    sink, heads, nk = prepared.sink, prepared.q.shape[1], prepared.k.shape[-2]
    assert sink is not None
    k, v = (functional.pad(tensor, (0, 0, 1, 0)) for tensor in (prepared.k, prepared.v))
    real, bias = call.key_padding_mask, call.bias
    if real is not None:
        real = functional.pad(real, (1, 0), value=True)
    if bias is not None or isinstance(sink, Tensor) or sink != 0.0:
        column = tensor_of(sink, k.device).to(k.dtype)
        if bias is None:
            bias = column.new_zeros(heads, 1, nk)
        bias = bias[(None,) * max(0, 3 - bias.dim())].to(k.dtype)
        bias = bias.expand(*bias.shape[:-3], heads, bias.shape[-2], nk)
        bias = torch.cat([column.expand(*bias.shape[:-1], 1), bias], -1)
    extended = dataclasses.replace(call, key_padding_mask=real, bias=bias)
    return prepared._replace(k=k, v=v, sink=None), extended
