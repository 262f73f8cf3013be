"""A training step and the evaluation of Transformer Small against reference points (`make speed`).

One baseline repeats, operation for operation, what IDSIA/lmtool-fwp at 0159201 does: tokens first,
stored einsum scores under a filled mask, a softmax per cluster over all its tokens at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.language.config import ModelConfig
from domains.language.evaluate import WINDOWS_AT_ONCE, sliding
from domains.language.interface import LanguageModel
from domains.language.layers import sinusoid
from domains.language.transformer import Transformer
from domains.speed_cases import SpeedCase

GROUP = "language: forward and backward"
BATCH, LENGTH = 4, 256
WINDOWS = WINDOWS_AT_ONCE + 1
"""One by itself, which counts with all its targets, and a batch of others."""
VOCABULARY = 267_735
SMALL = ModelConfig()
QUICK = replace(SMALL, layers=2, cutoffs=[200, 400, 2000])
QUICK_VOCABULARY = 4000


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase]:
    """QUEST against standard attention, and ours against the reference implementation."""
    model, vocabulary = (QUICK, QUICK_VOCABULARY) if quick else (SMALL, VOCABULARY)
    size = f"{'2 layers of ' if quick else ''}Small, {BATCH} x {LENGTH} tokens"

    def ours(variant: str) -> Callable[[], object]:
        net = Transformer(model, AttentionFactory(variant), vocabulary=vocabulary, longest=LENGTH)
        inputs, targets = _batch(vocabulary, device)
        return _step(net.to(device), lambda: -net.log_likelihood(inputs, targets)[0].mean())

    def plain() -> Callable[[], object]:
        net = _PlainTransformer(model, vocabulary).to(device)
        inputs, targets = _batch(vocabulary, device)
        return _step(net, lambda: net(inputs.T.contiguous(), targets.T.contiguous()).mean())

    yield SpeedCase(
        group=GROUP,
        name=f"quest, {size}",
        baseline=lambda: ours("standard"),
        candidate=lambda: ours("quest"),
        against="standard",
        time_target=1.03,
        tokens=BATCH * LENGTH,
    )
    yield SpeedCase(
        group=GROUP,
        name=f"standard, {size}",
        baseline=plain,
        candidate=lambda: ours("standard"),
        against="lmtool-fwp's operations",
        tokens=BATCH * LENGTH,
    )

    text = _text(vocabulary, LENGTH + WINDOWS).to(device)

    def scored(score: Callable[[LanguageModel, Tensor], object]) -> Callable[[], object]:
        net = Transformer(
            model, AttentionFactory("standard"), vocabulary=vocabulary, longest=LENGTH
        )
        net.to(device)
        return lambda: score(net, text)

    yield SpeedCase(
        group="language: evaluation",
        name=f"sliding, {'2 layers of ' if quick else ''}Small, {WINDOWS} windows of {LENGTH}",
        baseline=lambda: scored(_one_window_at_a_time),
        candidate=lambda: scored(lambda net, tokens: sliding(net, tokens, window=LENGTH)),
        against="one window at a time, every position computed",
        # Wanted of two cores: the small products of a single window leave the second one idle.
        time_target=1 / 3 if torch.get_num_threads() > 1 else None,
        tokens=WINDOWS,
    )


def _one_window_at_a_time(net: LanguageModel, tokens: Tensor) -> float:
    """Negative log-likelihood of every token, each after a whole window where there is one."""
    net.eval()
    with torch.no_grad():
        total = 0.0
        for start in range(len(tokens) - LENGTH):
            window = tokens[None, start : start + LENGTH + 1]
            every, _ = net.log_likelihood(window[:, :-1], window[:, 1:])
            total -= float(every.sum() if start == 0 else every[:, -1].sum())
    return total


def _text(vocabulary: int, length: int) -> Tensor:
    """(length,) tokens whose frequencies fall as those of words do: with the rank."""
    generator = torch.Generator().manual_seed(0)
    frequencies = 1.0 / torch.arange(1, vocabulary + 1)
    return torch.multinomial(frequencies, length, True, generator=generator)


def _batch(vocabulary: int, device: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, L)."""
    tokens = _text(vocabulary, BATCH * (LENGTH + 1)).view(BATCH, LENGTH + 1).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _step(net: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], object]:
    def step() -> None:
        net.zero_grad()
        torch.autograd.backward(loss())

    return step


class _PlainTransformer(nn.Module):
    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, config.width)
        self.layers = nn.ModuleList(_PlainLayer(config) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.edges = [0, *config.cutoffs, vocabulary]
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.clusters = nn.Linear(config.width, len(config.cutoffs))

    def forward(self, inputs_lb: Tensor, targets_lb: Tensor) -> Tensor:
        """Losses (L * B,), grouped by cluster."""
        width = self.embed.embedding_dim
        positions = torch.arange(len(inputs_lb) - 1, -1, -1, device=inputs_lb.device)
        x = self.embed(inputs_lb) * math.sqrt(width) + sinusoid(positions, width)[:, None]
        x = self.dropout(x)
        mask = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)[:, :, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self._losses(self.dropout(x).flatten(0, 1), targets_lb.flatten())

    def _losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        first, clusters = self.edges[1], len(self.edges) - 2
        weight = torch.cat([self.embed.weight[:first], self.clusters.weight])
        bias = torch.cat([self.bias[:first], self.clusters.bias])
        head = F.log_softmax(F.linear(hidden, weight, bias), dim=1)
        losses = []
        for i in range(clusters + 1):
            low, high = self.edges[i : i + 2]
            rows = ((targets >= low) & (targets < high)).nonzero().squeeze(1)
            if not rows.numel():
                continue
            inside, found = (targets[rows] - low)[:, None], head[rows]
            if i == 0:
                losses.append(-found.gather(1, inside))
                continue
            scores = F.linear(hidden[rows], self.embed.weight[low:high], self.bias[low:high])
            losses.append(-found[:, [-i]] - F.log_softmax(scores, dim=1).gather(1, inside))
        return torch.cat(losses)


class _PlainLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.width = config.heads, config.head_width
        inner = config.heads * config.head_width
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key_value = nn.Linear(config.width, 2 * inner, bias=False)
        self.out = nn.Linear(inner, config.width, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.feedforward = nn.Sequential(
            nn.Linear(config.width, config.feedforward),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(L, B, D) to (L, B, D)."""
        q = self.query(x).unflatten(-1, (self.heads, self.width))
        k, v = self.key_value(x).unflatten(-1, (2, self.heads, self.width)).unbind(2)
        scores = torch.einsum("ibnd,jbnd->ijbn", q, k) * self.width**-0.5
        scores = scores.masked_fill(mask[..., None], -torch.inf)
        attended = torch.einsum("ijbn,jbnd->ibnd", torch.softmax(scores, dim=1), v)
        x = self.norm1(x + self.dropout(self.out(attended.flatten(2))))
        out: Tensor = self.norm2(x + self.feedforward(x))
        return out
