"""A training step against the same step written the way TSLib writes it (`make speed`).

The baseline repeats, operation for operation, what thuml/Time-Series-Library at 4e938a1 does for
this task: a convolution with circular padding, stored einsum scores with dropout, feed-forward
maps as 1x1 convolutions, PyTorch's default RAdam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.base import build_optimizer
from domains.contract import OptimizerConfig
from domains.speed_cases import SpeedCase
from domains.timeseries.config import ModelConfig
from domains.timeseries.model import TimeSeriesTransformer, sine_positions

GROUP = "time series: a training step"
BATCH = 16
SHAPES = {"JapaneseVowels": (29, 12, 9), "Handwriting": (152, 3, 26)}
"""Steps, channels and classes."""

OPTIMIZER = OptimizerConfig(name="radam", lr=1e-3)
CLIP = 4.0


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase]:
    """Flat and [CLS] read-out, and QUEST against standard attention."""
    for name in ["JapaneseVowels"] if quick else SHAPES:
        for readout in ("flat", "cls"):
            yield SpeedCase(
                group=GROUP,
                name=f"{name}, {readout} read-out",
                baseline=lambda name=name: _baseline(name, device),  # type: ignore[misc]
                candidate=lambda name=name, readout=readout: _ours(  # type: ignore[misc]
                    name, readout, "standard", device
                ),
                against="TSLib's operations, flat read-out",
                time_target=0.75,
            )
        yield SpeedCase(
            group=GROUP,
            name=f"{name}, quest",
            baseline=lambda name=name: _ours(name, "cls", "standard", device),  # type: ignore[misc]
            candidate=lambda name=name: _ours(name, "cls", "quest", device),  # type: ignore[misc]
            against="standard",
        )


def _batch(name: str, device: str) -> tuple[Tensor, Tensor]:
    steps, channels, classes = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    series = torch.randn(BATCH, steps, channels, generator=generator)
    labels = torch.randint(classes, (BATCH,), generator=generator)
    return series.to(device), labels.to(device)


def _ours(name: str, readout: str, variant: str, device: str) -> Callable[[], object]:
    steps, channels, classes = SHAPES[name]
    net = TimeSeriesTransformer(
        ModelConfig(readout=readout),
        AttentionFactory(variant),
        channels=channels,
        classes=classes,
        length=steps,
        mask_padding=False,
    ).to(device)
    return _step(net, build_optimizer(net, OPTIMIZER), *_batch(name, device))


def _baseline(name: str, device: str) -> Callable[[], object]:
    steps, channels, classes = SHAPES[name]
    net = _PlainTransformer(ModelConfig(readout="flat"), steps, channels, classes).to(device)
    optimizer = torch.optim.RAdam(net.parameters(), lr=OPTIMIZER.lr)
    return _step(net, optimizer, *_batch(name, device))


def _step(
    net: nn.Module, optimizer: torch.optim.Optimizer, series: Tensor, labels: Tensor
) -> Callable[[], object]:
    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(series), labels).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()

    return step


class _PlainTransformer(nn.Module):
    def __init__(self, config: ModelConfig, steps: int, channels: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(
            channels, config.width, 3, padding=1, padding_mode="circular", bias=False
        )
        self.positions = nn.Buffer(sine_positions(steps, config.width))
        self.layers = nn.Sequential(*(_PlainLayer(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.classify = nn.Linear(steps * config.width, classes)

    def forward(self, series_blc: Tensor) -> Tensor:
        """Logits (B, classes)."""
        x = self.embed(series_blc.permute(0, 2, 1)).transpose(1, 2)
        x = self.layers(self.dropout(x + self.positions))
        x = self.dropout(F.gelu(self.norm(x)))
        logits: Tensor = self.classify(x.reshape(x.shape[0], -1))
        return logits


class _PlainLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.feedforward
        self.heads = config.heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.expand, self.contract = nn.Conv1d(width, hidden, 1), nn.Conv1d(hidden, width, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) to (B, L, D)."""
        x = self.norm1(x + self.dropout(self._attend(x)))
        y = self.dropout(F.gelu(self.expand(x.transpose(-1, 1))))
        y = self.dropout(self.contract(y).transpose(-1, 1))
        normed: Tensor = self.norm2(x + y)
        return normed

    def _attend(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        split = (batch, steps, self.heads, width // self.heads)
        q, k, v = (map_(x).view(split) for map_ in (self.query, self.key, self.value))
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        weights = self.dropout(torch.softmax(scores / split[-1] ** 0.5, dim=-1))
        values = torch.einsum("bhls,bshd->blhd", weights, v).contiguous()
        out: Tensor = self.out(values.view(batch, steps, width))
        return out
