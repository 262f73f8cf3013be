"""One Transformer layer that classifies from a [CLS] token.

Shapes: B samples, N tokens, D = 20 width of a token and of the model. Only what the [CLS] token
reads is computed: one query, the feed-forward map of one token. The numbers are those of the whole
layer.

Source: QUEST, arXiv 2604.00199, section 2.2 and appendix A.3; no code was published, and what the
text leaves open is chosen as the README says.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.toy.config import ModelConfig
from domains.toy.generator import CLASSES, WIDTH

CLS = 0
"""Place of the [CLS] token."""


class Looks(NamedTuple):
    """What the [CLS] token looks at, before any training signal: for the figures.

    Attributes:
        key_norms: (B, 1 + N) norms of the projected keys.
        query_norms: (B,) norms of the projected query.
        weights: (B, 1 + N) attention weights.
    """

    key_norms: Tensor
    query_norms: Tensor
    weights: Tensor


class ToyTransformer(nn.Module):
    """Class logits of token sequences.

    Args:
        config: sizes.
        attention: builds the attention layer.
        length: tokens N of a sample.
        norm: `pre` for x + f(LN(x)) and a last norm, `post` for LN(x + f(x)), `none` for x + f(x).
    """

    def __init__(
        self, config: ModelConfig, attention: AttentionFactory, *, length: int, norm: str
    ) -> None:
        super().__init__()
        self.placement = norm
        self.embedding = Embedding(length, config.token_sd)
        # The keys are those of the whole sequence, the query is one token of it.
        self.attention = attention(WIDTH, 1, cross=True, requests=frozenset())
        self.expand = nn.Linear(WIDTH, config.feedforward)
        self.contract = nn.Linear(config.feedforward, WIDTH)
        self.norm1 = _norm(norm != "none")
        self.norm2 = _norm(norm != "none")
        self.norm = _norm(norm == "pre")
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens_bnd: Tensor) -> Tensor:
        """Logits (B, classes) of tokens (B, N, D)."""
        x = self.embedding(tokens_bnd)
        cls = x[:, CLS]
        if self.placement == "post":
            cls = self.norm1(cls + self._attend(x))
            cls = self.norm2(cls + self._feedforward(cls))
        else:
            cls = cls + self._attend(self.norm1(x))
            cls = cls + self._feedforward(self.norm2(cls))
        logits: Tensor = self.classify(self.norm(cls))
        return logits

    def looks(self, tokens_bnd: Tensor) -> Looks:
        """Norms and attention weights for tokens (B, N, D)."""
        x = self.embedding(tokens_bnd)
        x = self.norm1(x) if self.placement == "pre" else x
        query, layer = x[:, CLS, None], self.attention
        return Looks(
            layer.k_proj(x).norm(dim=-1),
            layer.q_proj(query)[:, 0].norm(dim=-1),
            layer.probabilities(query, x)[:, 0, 0],
        )

    def _attend(self, x: Tensor) -> Tensor:
        attended: Tensor = self.attention(x[:, CLS, None], x)[:, 0]
        return attended

    def _feedforward(self, cls_bd: Tensor) -> Tensor:
        out: Tensor = self.contract(F.gelu(self.expand(cls_bd)))
        return out


class Embedding(nn.Module):
    """Puts the [CLS] token in front and adds learned positions.

    Args:
        length: tokens N of a sample.
        sd: standard deviation of the initial values, truncated at two of it.
    """

    def __init__(self, length: int, sd: float) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(WIDTH))
        self.positions = nn.Parameter(torch.empty(1 + length, WIDTH))
        for parameter in (self.token, self.positions):
            nn.init.trunc_normal_(parameter, std=sd, a=-2 * sd, b=2 * sd)

    def forward(self, tokens_bnd: Tensor) -> Tensor:
        """(B, 1 + N, D)."""
        token = self.token.expand(len(tokens_bnd), 1, -1)
        return torch.cat([token, tokens_bnd], dim=1) + self.positions


def _norm(there: bool) -> nn.Module:
    return nn.LayerNorm(WIDTH) if there else nn.Identity()
