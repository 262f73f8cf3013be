"""Parts that both families of models are made of.

Shapes: B sequences, L positions, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from attention.variant import Projections as Weights
from domains.common.dropout import Dropout
from domains.language.config import ModelConfig

INIT_SD = 0.02
"""Of all weights, and of the LayerNorms' about 1; biases start at 0."""

HIDDEN_AT_ONCE = 2**21
"""Numbers of the wide layer that a CPU holds at a time where no gradients are needed: 8 MB."""


class Projections(nn.Module):
    """Maps to queries, keys, values and back, without biases, around a causal attention core.

    Args:
        config: sizes.
        attention: builds the core.
        layer: index of the layer.
        requests: see :class:`attention.Context`.
    """

    def __init__(
        self,
        config: ModelConfig,
        attention: AttentionFactory,
        layer: int,
        requests: Collection[str] = (),
    ) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.q_proj = linear(config.width, inner, bias=False)
        self.k_proj = linear(config.width, inner, bias=False)
        self.v_proj = linear(config.width, inner, bias=False)
        self.out_proj = linear(inner, config.width, bias=False)
        self.core = attention.core(
            config.heads,
            config.head_width,
            dropout=config.attention_dropout,
            causal=True,
            layer=layer,
            num_layers=config.layers,
            layer_state=True,
            requests=requests,
            dim=config.width,
            projections={
                "q": (inner, config.width),
                "k": (inner, config.width),
                "v": (inner, config.width),
                "out": (config.width, inner),
            },
        )
        self.core.variant.adopt(self.projections())

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        roles = {"q_proj": "qk", "k_proj": "qk", "v_proj": "ov", "out_proj": "ov"}
        return {f"{name}.weight": tag for name, tag in roles.items()}

    def projections(self) -> Weights:
        """Weight of each projection; none has a bias."""
        return {role: (self._linear(role).weight, None) for role in ("q", "k", "v", "out")}

    def project(self, role: str, tokens: Tensor) -> Tensor:
        """(B, L, D) tokens to the queries "q", keys "k" or values "v" (B, H, L, K)."""
        return self.split(self._map(role, tokens))

    def split(self, tokens: Tensor) -> Tensor:
        """(B, L, H * K) to (B, H, L, K), a view."""
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def merge(self, heads_bhlk: Tensor) -> Tensor:
        """The output (B, L, D) of what the heads found."""
        return self._map("out", heads_bhlk.transpose(1, 2).flatten(2))

    def _map(self, role: str, tokens: Tensor) -> Tensor:
        """A projection, with what the variant makes of its weight."""
        return F.linear(tokens, self.core.variant.reparametrize(role, self._linear(role).weight))

    def _linear(self, role: str) -> nn.Linear:
        linear: nn.Linear = getattr(self, f"{role}_proj")
        return linear


class PostNorm(nn.Module):
    """What follows attention: x = LN(x + drop(a)); x = LN(x + drop(W2 drop(ReLU(W1 x))))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = layer_norm(config.width)
        self.expand = linear(config.width, config.feedforward)
        self.contract = linear(config.feedforward, config.width)
        self.norm2 = layer_norm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_bld: Tensor, attended_bld: Tensor) -> Tensor:
        """(B, L, D)."""
        x_bld = self.norm1(x_bld + self.dropout(attended_bld))
        out: Tensor = self.norm2(x_bld + self.dropout(self._feed_forward(x_bld)))
        return out

    def _feed_forward(self, x_bld: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled() or x_bld.device.type != "cpu":
            return self._of_tokens(x_bld)
        # The wide layer of a big batch does not fit into a core's cache.
        tokens = x_bld.flatten(0, -2)
        parts = tokens.split(max(1, HIDDEN_AT_ONCE // self.expand.out_features))
        return torch.cat([self._of_tokens(part) for part in parts]).view_as(x_bld)

    def _of_tokens(self, x: Tensor) -> Tensor:
        out: Tensor = self.contract(self.dropout(F.relu(self.expand(x), inplace=True)))
        return out


def linear(width_in: int, width_out: int, *, bias: bool = True) -> nn.Linear:
    """A map with the models' initial weights."""
    made = nn.Linear(width_in, width_out, bias=bias)
    nn.init.normal_(made.weight, std=INIT_SD)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def embedding(size: int, width: int) -> nn.Embedding:
    """A table with the models' initial weights."""
    made = nn.Embedding(size, width)
    nn.init.normal_(made.weight, std=INIT_SD)
    return made


def layer_norm(width: int) -> nn.LayerNorm:
    """A norm with the models' initial weights."""
    made = nn.LayerNorm(width)
    nn.init.normal_(made.weight, mean=1.0, std=INIT_SD)
    return made


def sinusoid(positions_n: Tensor, width: int) -> Tensor:
    """(N, width) float32: sines of all frequencies, then their cosines.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5; halves instead of alternating
    columns, as in Transformer-XL.
    """
    angles = positions_n.float()[:, None] * _frequencies(width, positions_n.device)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def rotate(x_bhnk: Tensor, positions_n: Tensor) -> Tensor:
    """Turn the pairs of channels (c, c + K/2) by angles that grow with the position.

    Scalar products of rotated queries and keys depend on their distance alone; norms stay.

    Source: Su et al. 2021, arXiv 2104.09864, equation 34.
    """
    angles = positions_n.float()[:, None] * _frequencies(x_bhnk.shape[-1], positions_n.device)
    cos, sin = angles.cos().to(x_bhnk.dtype), angles.sin().to(x_bhnk.dtype)
    first, second = x_bhnk.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _frequencies(width: int, device: torch.device) -> Tensor:
    """(width / 2,) radians a position, from 1 down to about 1 / 10000."""
    exponents = torch.arange(0, width, 2, device=device).float() / width
    return 10_000.0**-exponents
