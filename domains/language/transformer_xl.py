"""Transformer-XL: relative positions, and a memory of the segment before.

Shapes: B sequences, L positions of the segment, M remembered, N = M + L, D width, H heads, K width
of a head.

Source: Dai et al. 2019, arXiv 1901.02860; kimiyoung/transformer-xl at 44781ed (Apache-2.0),
`pytorch/mem_transformer.py` with attn_type 0; equal to it in values, gradients and memories
(`tests/domains/language/test_vectors.py`). Different on purpose: the last layer's output, which is
never read, is not remembered.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory, LayerState, UnsupportedError
from attention.variant import NEEDS_WEIGHTS
from domains.common.dropout import Dropout
from domains.language.adaptive import AdaptiveSoftmax
from domains.language.config import ModelConfig
from domains.language.interface import LanguageModel, Memory
from domains.language.layers import (
    INIT_SD,
    PostNorm,
    Projections,
    embedding,
    linear,
    sinusoid,
)


class TransformerXL(LanguageModel):
    """Post-norm layers with relative positions over a segment and a memory.

    Args:
        config: size and form.
        attention: builds the attention of every layer.
        vocabulary: number of words.
    """

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, *, vocabulary: int
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(config.width)
        self.memory_length = config.memory
        self.embedding = embedding(vocabulary, config.width)
        self.biases = LogitBiases(config)
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
        hidden, memory = self.hidden(inputs_bl, last_only=last_only, memory=memory)
        targets = targets_bl[:, -1:] if last_only else targets_bl
        flat = self.softmax(hidden.flatten(0, 1), targets.flatten(), self.embedding.weight)
        return flat.view(targets.shape), memory

    def hidden(
        self, inputs_bl: Tensor, *, last_only: bool = False, memory: Memory | None = None
    ) -> tuple[Tensor, Memory | None]:
        """(B, L or 1, D) input of the softmax, and the memory for the next segment."""
        x = self.dropout(self.embedding(inputs_bl) * self.scale)
        read = memory or Memory()
        old = read.layers or (x[:, :0],) * len(self.layers)
        length = old[0].shape[1] + x.shape[1]
        distances = torch.arange(length - 1, -1, -1, device=x.device)
        bounded = distances if read.clamp is None else distances.clamp(max=read.clamp)
        codes = self.dropout(sinusoid(bounded, x.shape[-1]).to(x.dtype))
        far = distances >= read.length if read.equal_context else None
        state = LayerState()
        new = []
        for index, (layer, remembered) in enumerate(zip(self.layers, old, strict=True)):
            source = torch.cat([remembered, x], dim=1)
            new.append(source[:, max(0, length - read.length) :].detach())
            asking = 1 if last_only and index == len(self.layers) - 1 else x.shape[1]
            x = layer(source, asking, codes, self.biases, far, state)
        kept = None if memory is None else replace(memory, layers=tuple(new))
        return self.dropout(x), kept

    def new_memory(
        self, *, length: int | None = None, clamp: int | None = None, equal_context: bool = False
    ) -> Memory:
        length = self.memory_length if length is None else length
        return Memory(length=length, clamp=clamp, equal_context=equal_context)


class LogitBiases(nn.Module):
    """What every query brings to the keys (u) and to the distances (v), shared by the layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape = config.heads, 1, config.head_width
        self.content = nn.Parameter(INIT_SD * torch.randn(shape))
        self.distance = nn.Parameter(INIT_SD * torch.randn(shape))

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each parameter, see :mod:`attention.tags`."""
        return {"content": "qk", "distance": "qk"}


class Layer(nn.Module):
    """Relative self-attention over memory and segment, then the feed-forward maps.

        logit_ij = s ((q'_i + u) . k'_j + ...),   ... = (q'_i + v) . r_(i-j),   r = W_r sinusoid

    q', k' and s are what the variant makes of queries, keys and the usual 1/sqrt(K), so that u and
    v are added to prepared queries. The position term has three forms (`model.relative`):

    - `separate`: s (q'_i + v) . r', where r' is what the variant makes of r as a key;
    - `content`: (q'_i + v) . r / sqrt(K), the variant sees the content term alone;
    - `unscaled`: s (q'_i + v) . r.

    For `standard` all three are the published form. What the variant does to single logits (the
    bound of `softcap`) it does to the content term, s (q'_i + u) . k'_j, alone.
    """

    def __init__(self, config: ModelConfig, attention: AttentionFactory, layer: int) -> None:
        super().__init__()
        self.attention = RelativeProjections(config, attention, layer)
        self.relative = config.relative
        self.block = PostNorm(config)

    def forward(
        self,
        source_bnd: Tensor,
        asking: int,
        codes_nd: Tensor,
        biases: LogitBiases,
        far_n: Tensor | None,
        state: LayerState,
    ) -> Tensor:
        """Output of the last positions.

        Args:
            source_bnd: (B, N, D) memory and segment.
            asking: number of last positions that are wanted.
            codes_nd: (N, D) codes of the distances N - 1, ..., 0.
            biases: shared by the layers.
            far_n: (N,) bool, distances that are not seen; None where all are.
            state: of this forward pass.

        Returns:
            (B, asking, D).
        """
        maps = self.attention
        x_bld = source_bnd[:, source_bnd.shape[1] - asking :]
        q = maps.project("q", x_bld)
        k, v = maps.project("k", source_bnd), maps.project("v", source_bnd)
        r = maps.split(maps.distance_proj(codes_nd)[None])
        before = state.copy()
        prepared, call = maps.core.prepare(q, k, v, state=state, x=x_bld)
        if self.relative == "separate":
            # The state as the content term found it: a layer advances it once.
            places, _ = maps.core.prepare(q, r.expand_as(k), v, state=before, x=x_bld)
        else:
            scale = prepared.scale if self.relative == "unscaled" else q.shape[-1] ** -0.5
            places = prepared._replace(k=r, scale=scale)
        terms = (places.q + biases.distance.to(q.dtype)) * places.scale @ places.k.mT
        if far_n is not None:
            terms = terms.masked_fill(far_n, -torch.inf)
        prepared = prepared._replace(q=prepared.q + biases.content.to(q.dtype))
        call = replace(call, bias=by_key(terms))
        out: Tensor = self.block(x_bld, maps.merge(maps.core.attend(prepared, call, q, k)))
        return out


class RelativeProjections(Projections):
    """Projections with one more, of the codes of distances.

    Raises:
        UnsupportedError: the variant has several maps a head, where the position terms are those
            of one, or looks at the weights of the projections, where it knows no position terms.
    """

    def __init__(self, config: ModelConfig, attention: AttentionFactory, layer: int) -> None:
        super().__init__(config, attention, layer, requests={"bias"})
        inner = config.heads * config.head_width
        self.distance_proj = linear(config.width, inner, bias=False)
        variant, obstacle = self.core.variant, None
        if variant.maps > 1:
            obstacle = f"has {variant.maps} maps a head, and the position terms are those of one"
        if NEEDS_WEIGHTS in variant.capabilities:
            obstacle = "sees the weights that make queries and keys, not those of the positions"
        if obstacle is not None:
            raise UnsupportedError(
                f"attention={self.core.name!r} {obstacle}: it cannot serve "
                "model.family=transformer_xl; use model.family=transformer"
            )

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        return {**super().parameter_tags(), "distance_proj.weight": "qk"}


def by_key(terms: Tensor) -> Tensor:
    """Position terms, given by distance, where the keys stand.

    Query row i of L stands at position N - L + i, so the distance N - 1 - m in column m belongs to
    key j = m - (L - 1 - i): row i moves to the left by L - 1 - i columns. One column in front and
    one reading of the same numbers with rows shorter by one do that for all rows at once; what
    comes in from the right stands for keys of the future.

    Args:
        terms: (B, H, L, N), column m for distance N - 1 - m.

    Returns:
        (B, H, L, N), column j for key j.
    """
    *front, rows, columns = terms.shape
    padded = F.pad(terms, (1, 0)).view(*front, columns + 1, rows)
    return padded[..., 1:, :].reshape(*front, rows, columns)
