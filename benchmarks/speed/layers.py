"""Attention layers, forward and backward, against torch's own.

Every variant stands against a plain layer: the same four projections around
`scaled_dot_product_attention`. `standard` also stands against `nn.MultiheadAttention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import LayerState, MultiHeadAttention, after_step, registry
from attention.steps import needs_steps
from attention.variant import NEEDS_STATE
from domains.speed_cases import SpeedCase

LENGTHS = (128, 512, 2048)
LONG = 512
"""From this length on the project's targets hold; below, fixed costs of a call dominate."""

TIME_TARGETS = {"quest": 1.03}
MEMORY_TARGETS = {"quest": 1.03}


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer: a batch of sequences, each of so many tokens."""

    batch: int
    tokens: int
    dim: int
    heads: int

    def input(self, device: str) -> Tensor:
        """(B, N, dim), the same numbers in every call."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.batch, self.tokens, self.dim, generator=generator).to(device)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """(B, N, H * D) to (B, H, N, D), a view."""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


class PlainLayer(nn.Module):
    """What a layer costs that does nothing but call the fused kernel."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, dim) to (B, N, dim)."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (split_heads(projection(x), self.heads) for projection in projections)
        heads = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        return out


def cases(*, device: str, quick: bool, variants: Sequence[str]) -> Iterator[SpeedCase]:
    """All layer cases; quick ones are a quarter of the work, in sequences a quarter as long."""
    shapes = [shape_of(tokens, 4 if quick else 1) for tokens in LENGTHS]
    for variant in variants:
        for shape in shapes:
            long = shape.tokens >= LONG
            yield SpeedCase(
                group="variants, forward + backward",
                name=f"{variant} N={shape.tokens}",
                baseline=training_step(shape, device, lambda s: PlainLayer(s.dim, s.heads)),
                candidate=variant_step(variant, shape, device),
                against="scaled_dot_product_attention, equal projections",
                time_target=TIME_TARGETS.get(variant) if long else None,
                memory_target=MEMORY_TARGETS.get(variant) if long else None,
            )
    for shape in shapes:
        yield SpeedCase(
            group="the suite's layer, forward + backward",
            name=f"standard N={shape.tokens}",
            baseline=training_step(shape, device, TorchLayer),
            candidate=training_step(
                shape, device, lambda s: MultiHeadAttention(s.dim, s.heads, projection="fused")
            ),
            against="nn.MultiheadAttention",
            time_target=1.00,
        )


def shape_of(tokens: int, divisor: int) -> Shape:
    """Sequences of so many tokens, 2048 in all, four heads of width 64; or a fraction of that."""
    return Shape(batch=2048 // tokens, tokens=tokens // divisor, dim=256, heads=4)


class TorchLayer(nn.Module):
    """`nn.MultiheadAttention` on its fast path: self-attention, no weights returned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(shape.dim, shape.heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, dim) to (B, N, dim)."""
        out: Tensor = self.layer(x, x, x, need_weights=False)[0]
        return out


def variant_step(variant: str, shape: Shape, device: str) -> Callable[[], Callable[[], object]]:
    """A layer of the suite. Variants that look at other layers find one there."""
    if NEEDS_STATE not in registry.entry(variant).capabilities:
        return training_step(
            shape, device, lambda s: MultiHeadAttention(s.dim, s.heads, variant=variant)
        )
    return training_step(shape, device, lambda s: SecondLayer(s, variant, device))


class SecondLayer(nn.Module):
    """The second layer of a model; the first one's values are given."""

    def __init__(self, shape: Shape, variant: str, device: str) -> None:
        super().__init__()
        self.layer = MultiHeadAttention(
            shape.dim, shape.heads, variant=variant, layer=1, num_layers=2, layer_state=True
        )
        self.values = split_heads(shape.input(device), shape.heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, dim) to (B, N, dim)."""
        state = LayerState()
        state.advance(0, self.values, None)
        state.first_values(0, self.values)
        out: Tensor = self.layer(x, state=state)
        return out


def training_step(
    shape: Shape, device: str, build: Callable[[Shape], nn.Module]
) -> Callable[[], Callable[[], object]]:
    """Forward, backward to input and weights, what the attention does after a step of the
    optimizer; gradients are dropped before the next step."""

    def prepare() -> Callable[[], object]:
        torch.manual_seed(0)
        layer = build(shape).to(device)
        x = shape.input(device).requires_grad_()
        weight = torch.ones_like(x)
        told = needs_steps(layer)

        def step() -> None:
            layer.zero_grad(set_to_none=True)
            x.grad = None
            layer(x).backward(weight)
            if told:
                after_step(layer)

        return step

    return prepare
