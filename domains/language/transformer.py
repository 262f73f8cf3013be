"""The causal Transformer with absolute positions: Small and Medium.

Shapes: B sequences, L positions, D width, H heads, K width of a head.

Source: IDSIA/lmtool-fwp at 0159201 (Apache-2.0), `src/model_main.py` with attn_type 2; equal to it
in values and gradients (`tests/domains/language/test_vectors.py`). Learned and rotary positions are
not from there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attention import AttentionFactory, LayerState
from domains.common.dropout import Dropout
from domains.language.adaptive import AdaptiveSoftmax
from domains.language.config import ModelConfig
from domains.language.interface import LanguageModel, Memory
from domains.language.layers import (
    INIT_SD,
    PostNorm,
    Projections,
    embedding,
    rotate,
    sinusoid,
)


class Transformer(LanguageModel):
    """Post-norm layers over embeddings with absolute positions.

    Args:
        config: size and form.
        attention: builds the attention of every layer.
        vocabulary: number of words.
        longest: positions of the longest sequence; needed for learned positions alone.
    """

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, *, vocabulary: int, longest: int
    ) -> None:
        super().__init__()
        self.embedding = Embedding(config, vocabulary, longest)
        self.layers = nn.ModuleList(
            Layer(config, attention, layer) for layer in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)
        self.softmax = AdaptiveSoftmax(
            config.width, vocabulary, config.cutoffs, tied=config.tied, init_sd=INIT_SD
        )

    def forward(
        self,
        inputs_bl: Tensor,
        targets_bl: Tensor,
        *,
        last_only: bool = False,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Memory | None]:
        if memory is not None:
            raise ValueError("memory: model.family=transformer has none; pass None")
        hidden = self.hidden(inputs_bl, last_only=last_only)
        targets = targets_bl[:, -1:] if last_only else targets_bl
        flat = self.softmax(hidden.flatten(0, 1), targets.flatten(), self.embedding.words.weight)
        return flat.view(targets.shape), None

    def hidden(self, inputs_bl: Tensor, *, last_only: bool = False) -> Tensor:
        """(B, L or 1, D) input of the softmax."""
        x = self.embedding(inputs_bl)
        state = LayerState()
        *first, last = self.layers
        for layer in first:
            x = layer(x, state)
        hidden: Tensor = self.dropout(last(x, state, last_only=last_only))
        return hidden

    def new_memory(
        self, *, length: int | None = None, clamp: int | None = None, equal_context: bool = False
    ) -> Memory | None:
        return None


class Embedding(nn.Module):
    """Word vectors times sqrt(D), with position codes added where positions are not rotary."""

    def __init__(self, config: ModelConfig, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.width)
        self.kind = config.positions
        self.words = embedding(vocabulary, config.width)
        self.places = embedding(longest, config.width) if self.kind == "learned" else None
        self.dropout = Dropout(config.dropout)

    def forward(self, inputs_bl: Tensor) -> Tensor:
        """(B, L, D)."""
        x = self.words(inputs_bl) * self.scale
        length = inputs_bl.shape[1]
        if self.kind == "sinusoidal":
            # The last token has position 0, whatever the length.
            falling = torch.arange(length - 1, -1, -1, device=x.device)
            x = x + sinusoid(falling, x.shape[-1]).to(x.dtype)
        elif self.places is not None:
            if length > len(self.places.weight):
                raise ValueError(
                    f"model.positions=learned was built for {len(self.places.weight)} positions "
                    f"and got {length}; raise recipe.segment or recipe.window"
                )
            x = x + self.places.weight[:length]
        dropped: Tensor = self.dropout(x)
        return dropped


class Layer(nn.Module):
    """Causal self-attention, then the feed-forward maps."""

    def __init__(self, config: ModelConfig, attention: AttentionFactory, layer: int) -> None:
        super().__init__()
        self.attention = Projections(config, attention, layer)
        self.rotary = config.positions == "rotary"
        self.block = PostNorm(config)

    def forward(self, x_bld: Tensor, state: LayerState, *, last_only: bool = False) -> Tensor:
        """(B, L, D), or (B, 1, D) of the last position alone."""
        maps = self.attention
        asking = x_bld[:, -1:] if last_only else x_bld
        q = maps.project("q", asking)
        k, v = maps.project("k", x_bld), maps.project("v", x_bld)
        if self.rotary:
            positions = torch.arange(x_bld.shape[1], device=x_bld.device)
            q, k = rotate(q, positions[-q.shape[2] :]), rotate(k, positions)
        out: Tensor = self.block(asking, maps.merge(maps.core(q, k, v, state=state, x=asking)))
        return out
