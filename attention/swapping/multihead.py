"""`nn.MultiheadAttention`, wherever it stands.

In `nn.TransformerEncoder`, `nn.TransformerDecoder`, PyG's `GPSConv`, the vision transformers of
mmsegmentation, and in models of one's own. Module, parameters and their names stay; calls keep
their meaning, with masks in which True hides a key. Weights that are asked for with `need_weights`
are those without dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core import AttentionCore
from ..variant import Projections, UnsupportedError
from .classes import Exchanged, exchanged_class, give_back
from .masks import hidden_as_bias, merge, split_padding
from .site import Choice, CoreSite, Place, Site, Stack

NAMES = {"q": "q_proj_weight", "k": "k_proj_weight", "v": "v_proj_weight"}


class SwappedMultihead(Exchanged, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with a variant inside.

    Shapes and masks of `forward` are those of the original.
    """

    core: AttentionCore
    stack: Stack | None
    causal_refusal: str | None
    weights_are_dropped: bool
    own_keys: bool

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # Where this is True, nn.TransformerEncoderLayer takes the weights and computes standard
        # attention itself, in evaluation without gradients.
        return False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal says what attn_mask holds; pass attn_mask too")
        if attn_mask is not None and self.causal_refusal is not None:
            raise UnsupportedError(
                f"attn_mask may hide keys that come later: {self.causal_refusal}"
            )
        if query.is_nested:
            return self._of_nested(query, key, value), None
        batched = query.dim() == 3
        q, k, v = query, key, value
        if not batched:
            q, k, v = (each.unsqueeze(0) for each in (q, k, v))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        need_weights = need_weights and not self.weights_are_dropped
        out, weights = self._attend(
            q, k, v, key_padding_mask, attn_mask, need_weights, is_causal, key is query
        )
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def projections(self) -> Projections:
        """Weight and bias of each projection; those of a fused one as views of it."""
        biases: tuple[Tensor | None, ...] = (None,) * 3
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = tuple(getattr(self, name) for name in NAMES.values())
        found = dict(zip("qkv", zip(weights, biases, strict=True), strict=True))
        return {**found, "out": (self.out_proj.weight, self.out_proj.bias)}

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        tags = {"in_proj_weight": "qkv", "in_proj_bias": "qkv", "bias_k": "qk", "bias_v": "ov"}
        tags |= {"q_proj_weight": "qk", "k_proj_weight": "qk", "v_proj_weight": "ov"}
        tags |= {"out_proj.weight": "ov", "out_proj.bias": "ov"}
        present = dict(self.named_parameters())
        return {name: tag for name, tag in tags.items() if name in present}

    def _reset_parameters(self) -> None:
        """As the original, which asks the flag above for which parameters there are."""
        for weight in (self.in_proj_weight, *(getattr(self, name) for name in NAMES.values())):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        need_weights: bool,
        is_causal: bool,
        from_one: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Output (B, Nq, E) and weights (B, H, Nq, Nk), from tokens with the batch first."""
        weights = self.projections()
        q, k, v = (
            self._split(self._project(weights, role, tokens))
            for role, tokens in zip("qkv", (query, key, value), strict=True)
        )
        if self.stack is not None and q.shape[2] != k.shape[2] and not self.core.context.cross:
            raise UnsupportedError(
                f"attention={self.core.name!r} looks at the values of the layers before, and here "
                "they come from another sequence; leave this one out with where="
            )
        real, bias = None, None
        if key_padding_mask is not None:
            real, bias = split_padding(key_padding_mask)
        extra = self._extra_keys(k) if self.own_keys else None
        if extra is not None:
            k, v = torch.cat([k, extra[0]], 2), torch.cat([v, extra[1]], 2)
        by_flag = is_causal and real is None and not need_weights and q.shape[2] == k.shape[2]
        if attn_mask is not None and not by_flag:
            bias = merge(bias, self._bias_of(attn_mask, q))
        if extra is not None:
            added = extra[0].shape[2]
            real = None if real is None else functional.pad(real, (0, added), value=True)
            if bias is not None:
                bias = bias.expand(*bias.shape[:-1], k.shape[2] - added)
                bias = functional.pad(bias, (0, added))
        state = None
        if self.stack is not None:
            place = self.core.context
            state = self.stack.state(place.layer, place.num_layers)
        maps = None
        if need_weights:
            maps = self.core.probabilities(q, k, v, key_padding_mask=real, bias=bias, state=state)
        rows = None
        if real is not None and not from_one:
            rows = real.new_ones(q.shape[0], q.shape[2])
        out = self.core(
            q,
            k,
            v,
            key_padding_mask=real,
            bias=bias,
            state=state,
            query_padding_mask=rows,
            x=query,
            causal=by_flag,
        )
        return self._project(weights, "out", out.transpose(1, 2).flatten(2)), maps

    def _project(self, projections: Projections, role: str, tokens: Tensor) -> Tensor:
        weight, bias = projections[role]
        return functional.linear(tokens, self.core.variant.reparametrize(role, weight), bias)

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, N, E) to (B, H, N, D), a view."""
        return tokens.view(*tokens.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _bias_of(self, mask: Tensor, q: Tensor) -> Tensor:
        """A mask (Nq, Nk) or (B H, Nq, Nk), True = hidden or float, as a bias."""
        if mask.dtype == torch.bool:
            mask = hidden_as_bias(mask, q.dtype)
        return mask if mask.dim() == 2 else mask.view(*q.shape[:2], *mask.shape[1:])

    def _extra_keys(self, k: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values (B, H, 1 or 2, D) that the layer itself puts behind those of tokens."""
        keys, values = [], []
        if self.bias_k is not None and self.bias_v is not None:
            keys.append(self._split(self.bias_k).expand(k.shape[0], -1, -1, -1))
            values.append(self._split(self.bias_v).expand(k.shape[0], -1, -1, -1))
        if self.add_zero_attn:
            zero = k.new_zeros(*k.shape[:2], 1, k.shape[3])
            keys.append(zero)
            values.append(zero)
        return (torch.cat(keys, 2), torch.cat(values, 2)) if keys else None

    def _of_nested(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """nn.TransformerEncoder nests its input in evaluation, to leave out the padding."""
        if key is not query or value is not query:
            raise ValueError("nested tensors are taken in self-attention alone; pass padded ones")
        lengths = [len(tokens) for tokens in query.unbind()]
        padded = query.to_padded_tensor(0.0)
        hidden = torch.arange(padded.shape[1], device=padded.device) >= torch.tensor(
            lengths, device=padded.device
        ).unsqueeze(1)
        out, _ = self._attend(padded, padded, padded, hidden, None, False, False, True)
        return torch.nested.as_nested_tensor(
            [tokens[:length] for tokens, length in zip(out.unbind(), lengths, strict=True)]
        )


class MultiheadSite(CoreSite):
    """An `nn.MultiheadAttention`."""

    kind = "torch.nn.MultiheadAttention"
    module: nn.MultiheadAttention

    def __init__(
        self,
        name: str,
        module: nn.MultiheadAttention,
        *,
        cross: bool,
        causal: bool,
        weights_are_dropped: bool,
    ) -> None:
        super().__init__(name, module)
        self.original = type(module)
        self.cross = cross
        self.causal = causal
        self.weights_are_dropped = weights_are_dropped
        own = {"bias_k": module.bias_k is not None, "add_zero_attn": module.add_zero_attn}
        self.own = tuple(f"a sink ({name})" for name, present in own.items() if present)

    @property
    def width(self) -> str:
        return f"{self.module.num_heads} heads of {self.module.head_dim}"

    def build(self, choice: Choice, place: Place) -> None:
        module = self.module
        inner, key_dim, value_dim = module.embed_dim, module.kdim, module.vdim
        weight = (
            module.in_proj_weight if module.in_proj_weight is not None else module.q_proj_weight
        )
        self.core = self.new_core(
            choice,
            place,
            module.num_heads,
            module.head_dim,
            weight,
            dropout=module.dropout,
            cross=self.cross,
            dim=inner,
            projections={
                "q": (inner, inner),
                "k": (inner, key_dim),
                "v": (inner, value_dim),
                "out": (inner, inner),
            },
        )
        self.stack = place.stack if choice.needs_state else None
        self.refusal = self.causal_refusal(choice)
        if self.causal and self.refusal is not None:
            raise UnsupportedError(
                f"it belongs to a decoder. {self.refusal}, or leave it out with where="
            )
        self.keeps = choice.own == "keep"

    def enter(self) -> None:
        module: Any = self.module
        module.__class__ = exchanged_class(SwappedMultihead, self.original)
        module.core = self.core
        module.stack = self.stack
        module.causal_refusal = self.refusal
        module.weights_are_dropped = self.weights_are_dropped
        module.own_keys = self.keeps
        self.core.variant.adopt(module.projections())

    def leave(self) -> None:
        give_back(self.module, self.original, SwappedMultihead.__annotations__)


def find(modules: Mapping[str, nn.Module]) -> Iterator[Site]:
    """Sites among the modules of a model, by qualified name."""
    for name, module in modules.items():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        if type(module).forward is not nn.MultiheadAttention.forward:
            continue
        path, _, attribute = name.rpartition(".")
        parent = modules.get(path) if name else None
        in_decoder = isinstance(parent, nn.TransformerDecoderLayer)
        other_widths = (module.kdim, module.vdim) != (module.embed_dim, module.embed_dim)
        yield MultiheadSite(
            name,
            module,
            cross=other_widths or (in_decoder and attribute == "multihead_attn"),
            causal=in_decoder and attribute == "self_attn",
            # The wrapper of mmcv asks for the weights and takes the output alone.
            weights_are_dropped=type(parent).__module__.startswith("mmcv."),
        )
