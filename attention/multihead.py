"""Multi-head attention with a variant inside: what models are built from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .core import AttentionCore
from .packing import Packing, packing_of
from .variant import NEEDS_INPUT, LayerState, Projections, Variant

PROJECTIONS = ("separate", "fused")
INITS = ("linear", "xavier")


class MultiHeadAttention(nn.Module):
    """Projections, a variant, and the output projection.

    Under one seed the weights are the same for all variants.

    Args:
        dim: width of the input x and of the output.
        heads: number of heads.
        variant: name of the variant, see `registry.names()`.
        options: options of the variant, see `registry.config_of(name)`.
        head_dim: width of a head; by default dim / heads.
        key_dim: width of the context that keys and values are made of; given, it makes the layer
            one of cross-attention.
        qkv_bias: whether the projections of q, k and v have a bias.
        out_bias: whether the output projection has one.
        projection: `"separate"` parameters `q_proj`, `k_proj`, `v_proj`, or one `qkv_proj` whose
            rows are q, then k, then v (`"fused"`); this decides how initial values are drawn.
        init: `"linear"`, the default of `nn.Linear`, or `"xavier"`, that of
            `nn.MultiheadAttention`: with one seed also the same numbers.
        attention_dropout: probability of dropping an attention weight.
        output_dropout: probability of dropping an entry of the output.
        causal, cross, layer, num_layers, layer_state, requests: see
            :class:`~attention.variant.Context`.

    Raises:
        UnsupportedError: the variant cannot honour what is asked for.
        ValueError: an argument is out of range, unknown, or does not fit another.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        variant: str = "standard",
        options: Mapping[str, Any] | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        projection: str = "separate",
        init: str = "linear",
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
        causal: bool = False,
        cross: bool = False,
        layer: int = 0,
        num_layers: int = 1,
        layer_state: bool = False,
        requests: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        if head_dim is None:
            if heads < 1 or dim % heads:
                raise ValueError(f"dim={dim} is not a multiple of heads={heads}; give head_dim")
            head_dim = dim // heads
        for name, value, allowed in (
            ("projection", projection, PROJECTIONS),
            ("init", init, INITS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
        if projection == "fused" and key_dim not in (None, dim):
            raise ValueError(f"key_dim={key_dim} differs from dim={dim}; use projection='separate'")
        if not 0.0 <= output_dropout < 1.0:
            raise ValueError(f"output_dropout={output_dropout} must be at least 0 and below 1")
        self.dim = dim
        self.key_dim = key_dim or dim
        self.heads = heads
        self.head_dim = head_dim
        self.projection = projection
        self.output_dropout = output_dropout
        inner = heads * head_dim
        if projection == "fused":
            self.qkv_proj = _new_linear(dim, 3 * inner, qkv_bias, init)
        else:
            self.q_proj = _new_linear(dim, inner, qkv_bias, init)
            self.k_proj = _new_linear(self.key_dim, inner, qkv_bias, init)
            self.v_proj = _new_linear(self.key_dim, inner, qkv_bias, init)
        self.out_proj = nn.Linear(inner, dim, bias=out_bias)
        if init == "xavier":
            # Drawn after the output projection, in the order of nn.MultiheadAttention.
            for linear in self._input_projections():
                nn.init.xavier_uniform_(linear.weight)
            if out_bias:
                nn.init.zeros_(self.out_proj.bias)
        self.core = AttentionCore(
            heads,
            head_dim,
            variant=variant,
            options=options,
            dropout=attention_dropout,
            causal=causal,
            cross=cross or key_dim is not None,
            layer=layer,
            num_layers=num_layers,
            layer_state=layer_state,
            requests=requests,
            dim=dim,
            projections={
                "q": (inner, dim),
                "k": (inner, self.key_dim),
                "v": (inner, self.key_dim),
                "out": (dim, inner),
            },
        )
        self._weights_change = type(self.core.variant).reparametrize is not Variant.reparametrize
        self.core.variant.adopt(self.projections())

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        context_cu_seqlens: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """Attention of x to itself or to the context.

        Args:
            x: (B, N, dim), or packed (T, dim) with `cu_seqlens`.
            context: (B, Nk, key_dim), or packed (Tk, key_dim) with `context_cu_seqlens`; for
                cross-attention only.
            key_padding_mask: (B, Nk) bool, True = real token; not with packed input.
            bias: float, broadcastable to (B, H, Nq, Nk), added to the logits. With packed input
                B counts the sequences, Nq and Nk are the longest lengths.
            cu_seqlens: (S + 1,) int, first token of each sequence, then T.
            context_cu_seqlens: the same for the context.
            state: the state of this forward pass, if the model declared `layer_state`.

        Returns:
            Of the shape of x, width dim. The output of a query that sees no key is the bias of
            the output projection.

        Raises:
            ValueError: a shape is wrong, or something was not declared when the layer was built.
        """
        given = self._project(x, context, key_padding_mask, cu_seqlens, context_cu_seqlens)
        out = self.core(
            given.q,
            given.k,
            given.v,
            key_padding_mask=given.key_padding_mask,
            bias=bias,
            state=state,
            query_padding_mask=given.query_padding_mask,
            x=given.x,
        )
        out = out.transpose(1, 2).flatten(2)
        if given.packing is not None:
            out = given.packing.unpad(out)
        out = self._linear("out", self.out_proj, out)
        return functional.dropout(out, self.output_dropout, self.training)

    def probabilities(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        context_cu_seqlens: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """(B, H, Nq, Nk) attention weights without dropout, on demand. Arguments as `forward`.

        Those of several maps a head are merged, and may be negative. Rows of queries that see no
        key are zero. `state` is read, not advanced.
        """
        given = self._project(x, context, key_padding_mask, cu_seqlens, context_cu_seqlens)
        return self.core.probabilities(
            given.q,
            given.k,
            given.v,
            key_padding_mask=given.key_padding_mask,
            bias=bias,
            state=state,
        )

    def logits(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        bias: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        context_cu_seqlens: Tensor | None = None,
        state: LayerState | None = None,
    ) -> Tensor:
        """(B, H, Nq, Nk) input of the softmax, on demand. Arguments as `forward`.

        With several maps a head, those of all maps, side by side in the second axis. -inf where a
        query does not see a key. `state` is read, not advanced.
        """
        given = self._project(x, context, key_padding_mask, cu_seqlens, context_cu_seqlens)
        return self.core.logits(
            given.q,
            given.k,
            given.v,
            key_padding_mask=given.key_padding_mask,
            bias=bias,
            state=state,
        )

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        roles = {"qkv_proj": "qkv", "q_proj": "qk", "k_proj": "qk", "v_proj": "ov"}
        roles["out_proj"] = "ov"
        return {
            name: roles[name.split(".")[0]]
            for name, _ in self.named_parameters()
            if name.split(".")[0] in roles
        }

    def projections(self) -> Projections:
        """Weight and bias of each projection; those of a fused one as views of it."""
        found: dict[str, tuple[Tensor, Tensor | None]]
        if self.projection == "fused":
            found = dict(zip("qkv", zip(*self._split_qkv(), strict=True), strict=True))
        else:
            linears = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
            found = {role: (linear.weight, linear.bias) for role, linear in linears.items()}
        return {**found, "out": (self.out_proj.weight, self.out_proj.bias)}

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}"

    def _input_projections(self) -> tuple[nn.Linear, ...]:
        if self.projection == "fused":
            return (self.qkv_proj,)
        return self.q_proj, self.k_proj, self.v_proj

    def _project(
        self,
        x: Tensor,
        context: Tensor | None,
        key_padding_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        context_cu_seqlens: Tensor | None,
    ) -> _Projected:
        """Checked input, projected and split into heads; packed input comes out padded."""
        cross = self.core.context.cross
        if cross and context is None:
            raise ValueError("context: this layer was built for cross-attention and needs it")
        if not cross and (context is not None or context_cu_seqlens is not None):
            raise ValueError("context: build the layer with cross=True or key_dim to pass one")
        packed = cu_seqlens is not None
        if cross and packed != (context_cu_seqlens is not None):
            raise ValueError("cu_seqlens and context_cu_seqlens go together")
        _check_input("x", x, self.dim, packed)
        source = x
        if context is not None:
            _check_input("context", context, self.key_dim, packed)
            source = context
        if key_padding_mask is not None:
            self.core.check_declared("key_padding_mask", "padding")
        q, k, v = self._qkv(x, source)
        packing = None
        query_padding_mask = None
        if cu_seqlens is not None:
            self.core.check_declared("cu_seqlens", "packed")
            if key_padding_mask is not None:
                raise ValueError("key_padding_mask: packed sequences have no padding; leave it out")
            packing = key_packing = packing_of("cu_seqlens", cu_seqlens, x.shape[0])
            if context_cu_seqlens is not None:
                key_packing = packing_of("context_cu_seqlens", context_cu_seqlens, source.shape[0])
            q, k, v = packing.pad(q), key_packing.pad(k), key_packing.pad(v)
            key_padding_mask = key_packing.mask()
            query_padding_mask = packing.mask() if cross else key_padding_mask
        q, k, v = (self._split(t) for t in (q, k, v))
        looked_at = None
        if NEEDS_INPUT in self.core.variant.capabilities:
            looked_at = x if packing is None else packing.pad(x)
        return _Projected(q, k, v, key_padding_mask, query_padding_mask, packing, looked_at)

    def _qkv(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Three products also where the weight is one.

        As fast as one product (measured on a CPU, N = 128 to 2048), and a variant that replaces
        k lets go of the projected one, which would live on as a part of the one product.
        """
        if self.projection == "separate":
            return (
                self._linear("q", self.q_proj, x),
                self._linear("k", self.k_proj, source),
                self._linear("v", self.v_proj, source),
            )
        q, k, v = (
            functional.linear(tokens, self.core.variant.reparametrize(role, weight), bias)
            for role, tokens, weight, bias in zip(
                "qkv", (x, source, source), *self._split_qkv(), strict=True
            )
        )
        return q, k, v

    def _split_qkv(self) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
        """Weights and biases of q, k and v, views of the fused projection."""
        bias = self.qkv_proj.bias
        return self.qkv_proj.weight.chunk(3), (None,) * 3 if bias is None else bias.chunk(3)

    def _linear(self, role: str, linear: nn.Linear, tokens: Tensor) -> Tensor:
        """A projection; by itself unless the variant changes its weight, for the sake of hooks."""
        if not self._weights_change:
            projected: Tensor = linear(tokens)
            return projected
        weight = self.core.variant.reparametrize(role, linear.weight)
        return functional.linear(tokens, weight, linear.bias)

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, N, H * D) to (B, H, N, D), a view."""
        return tokens.view(*tokens.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


class _Projected(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    key_padding_mask: Tensor | None
    query_padding_mask: Tensor | None
    packing: Packing | None
    x: Tensor | None


def _new_linear(width_in: int, width_out: int, bias: bool, init: str) -> nn.Linear:
    if init == "linear":
        return nn.Linear(width_in, width_out, bias=bias)
    # Left undrawn, so that the random stream is that of nn.MultiheadAttention.
    linear: nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, width_in, width_out, bias=bias
    )
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def _check_input(name: str, tokens: Tensor, width: int, packed: bool) -> None:
    axes = 2 if packed else 3
    if tokens.dim() != axes or tokens.shape[-1] != width:
        expected = f"(tokens, {width}) with cu_seqlens" if packed else f"(batch, tokens, {width})"
        raise ValueError(f"{name} has shape {tuple(tokens.shape)}, expected {expected}")
