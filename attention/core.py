"""Attention between projections: variant, kernel, dropout and telemetry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import kernels, registry
from .variant import NEEDS_INPUT, Call, Context, LayerState, Prepared

if TYPE_CHECKING:
    from .recorder import Recorder


class AttentionCore(nn.Module):
    """Maps projected q, k, v to the output of each head.

    :class:`~attention.multihead.MultiHeadAttention` has one. Models with projections of their own
    (relative positions, serialized points) use it alone.

    Args:
        heads: number of heads.
        head_dim: width D of the queries and keys of a head.
        variant: name of the variant, see `registry.names()`.
        options: options of the variant, see `registry.config_of(name)`.
        dropout: probability of dropping an attention weight in training.
        causal, cross, layer, num_layers, layer_state, requests, dim, projections: see
            :class:`Context`.

    Raises:
        UnsupportedError: the variant cannot honour what is asked for.
        ValueError: an argument is out of range or unknown.
    """

    telemetry: Recorder | None

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        variant: str = "standard",
        options: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        cross: bool = False,
        layer: int = 0,
        num_layers: int = 1,
        layer_state: bool = False,
        requests: Collection[str] | None = None,
        dim: int | None = None,
        projections: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"attention dropout {dropout} must be at least 0 and below 1")
        self.context = Context(
            heads=heads,
            head_dim=head_dim,
            layer=layer,
            num_layers=num_layers,
            causal=causal,
            cross=cross,
            layer_state=layer_state,
            requests=None if requests is None else frozenset(requests),
            dim=dim,
            projections=projections,
        )
        self.name = variant
        self.dropout = dropout
        self.variant = registry.build(variant, self.context, options)
        self.telemetry = None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        state: LayerState | None = None,
        query_padding_mask: Tensor | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Attention of each head.

        Args:
            q: (B, H, Nq, D) queries; k, v: (B, H, Nk, D) keys and values.
            key_padding_mask: (B, Nk) bool, True = real token.
            bias: float, broadcastable to (B, H, Nq, Nk), added to the logits.
            state: the state of this forward pass, if the model declared `layer_state`.
            query_padding_mask: (B, Nq) bool; only keeps padded rows out of the telemetry. In
                self-attention it follows from `key_padding_mask`.
            x: (B, Nq, dim) tokens that q was projected from, if the model declared `dim`. Only
                variants that declare `"needs_input"` look at them.

        Returns:
            (B, H, Nq, D); zeros for a query that sees no key.

        Raises:
            ValueError: a shape is wrong, or something was not declared when the core was built.
        """
        prepared, call = self.prepare(
            q,
            k,
            v,
            key_padding_mask=key_padding_mask,
            bias=bias,
            state=state,
            query_padding_mask=query_padding_mask,
            x=x,
        )
        return self.attend(prepared, call, q, k)

    def prepare(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        state: LayerState | None = None,
        query_padding_mask: Tensor | None = None,
        x: Tensor | None = None,
    ) -> tuple[Prepared, Call]:
        """The first half of :meth:`forward`: what the variant makes of q, k and v.

        For models whose logits have terms of their own beside the variant's; what is returned may
        be changed before it goes to :meth:`attend`.
        """
        call = self._call(q, k, v, key_padding_mask, bias, state, query_padding_mask)
        call.x = self._checked_input(x, q)
        return self.variant.prepare(q, k, v, call), call

    def attend(self, prepared: Prepared, call: Call, q: Tensor, k: Tensor) -> Tensor:
        """The second half of :meth:`forward`: kernel, dropout and telemetry.

        Args:
            prepared, call: from :meth:`prepare`.
            q, k: as given there; the telemetry reads their norms.
        """
        out = kernels.attend(prepared, call, self.dropout if self.training else 0.0)
        if self.telemetry is not None:
            self.telemetry.record(q, k, prepared, call)
        return self.variant.finish(self.variant.merge(out), call)

    def logits(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """(B, H, Nq, Nk) input of the softmax; -inf where a query does not see a key.

        With several maps a head, (B, M, Nq, Nk), see :class:`~attention.variant.Prepared`.
        Arguments as in :meth:`forward`; `state` is read, not advanced.
        """
        copy = None if state is None else state.copy()
        call = self._call(q, k, v, key_padding_mask, bias, copy, None)
        return kernels.masked_logits(self.variant.prepare(q, k, v, call), call)

    def probabilities(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """(B, H, Nq, Nk) attention weights without dropout; zero rows where no key is seen.

        Those of several maps a head are merged, and may be negative.
        """
        copy = None if state is None else state.copy()
        call = self._call(q, k, v, key_padding_mask, bias, copy, None)
        prepared = self.variant.prepare(q, k, v, call)
        weights = kernels.weights_of(prepared, kernels.masked_logits(prepared, call))
        return self.variant.merge(weights)

    def extra_repr(self) -> str:
        return f"variant={self.name!r}, dropout={self.dropout}, {self.context}"

    def _call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_padding_mask: Tensor | None,
        bias: Tensor | None,
        state: LayerState | None,
        query_padding_mask: Tensor | None,
    ) -> Call:
        """The checked request of one forward pass."""
        context = self.context
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.dim() != 4 or tensor.shape[1] != context.heads:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, expected "
                    f"(batch, {context.heads} heads, tokens, {context.head_dim})"
                )
        batch, heads, nq, width = q.shape
        nk = k.shape[2]
        expected = (batch, heads, nk, context.head_dim)
        if width != context.head_dim or k.shape != expected or v.shape[:3] != expected[:3]:
            raise ValueError(
                f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: all "
                f"need the same batch and head_dim={context.head_dim}, k and v the same tokens"
            )
        if context.causal and nk < nq:
            raise ValueError(f"causal attention of {nq} queries needs as many keys, got {nk}")
        if key_padding_mask is not None:
            # Packed sequences arrive here padded.
            self.check_declared("key_padding_mask", "padding", "packed")
            _check_mask("key_padding_mask", key_padding_mask, (batch, nk))
        if bias is not None:
            self.check_declared("bias", "bias")
            _check_bias(bias, (batch, heads, nq, nk))
        if state is not None and not context.layer_state:
            raise ValueError("state: declare layer_state=True where the layer is built")
        if state is None and context.layer_state:
            raise ValueError("state: this layer was built with layer_state=True; pass the state")
        if query_padding_mask is not None:
            _check_mask("query_padding_mask", query_padding_mask, (batch, nq))
        elif key_padding_mask is not None and not context.cross and nq <= nk:
            query_padding_mask = key_padding_mask[:, nk - nq :]
        return Call(key_padding_mask, bias, context.causal, state, query_padding_mask)

    def _checked_input(self, x: Tensor | None, q: Tensor) -> Tensor | None:
        dim = self.context.dim
        if x is None:
            if NEEDS_INPUT in self.variant.capabilities:
                raise ValueError(
                    f"x: attention={self.name!r} looks at the tokens of the queries; pass them"
                )
            return None
        if dim is None:
            raise ValueError("x: declare the width of the tokens, dim, where the layer is built")
        expected = (q.shape[0], q.shape[2], dim)
        if x.shape != expected:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected {expected}")
        return x

    def check_declared(self, argument: str, *requests: str) -> None:
        """Refuse an argument unless one of `requests` was announced and can be honoured."""
        declared = self.context.requests
        if declared is not None and not declared.intersection(requests):
            raise ValueError(
                f"{argument}: not among the requests declared for this layer "
                f"({', '.join(sorted(declared)) or 'none'}); add {requests[0]!r} to requests"
            )
        if not self.variant.capabilities.intersection(requests):
            raise ValueError(f"{argument}: attention={self.name!r} cannot honour {requests[0]}")


def _check_mask(name: str, mask: Tensor, shape: tuple[int, int]) -> None:
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ValueError(
            f"{name} is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool of shape "
            f"{shape}, True for real tokens"
        )


def _check_bias(bias: Tensor, shape: tuple[int, int, int, int]) -> None:
    fits = bias.dim() <= 4 and all(
        have in (1, want) for have, want in zip(reversed(bias.shape), reversed(shape), strict=False)
    )
    if not (fits and bias.dim() >= 1 and bias.is_floating_point()):
        raise ValueError(
            f"bias is {bias.dtype} of shape {tuple(bias.shape)}, expected a float tensor that "
            f"broadcasts to (batch, heads, queries, keys) = {shape}"
        )
