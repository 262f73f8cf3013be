"""Training steps of the toy task: one run against plain PyTorch, many runs against one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.base import build_optimizer
from domains.contract import OptimizerConfig
from domains.speed_cases import SpeedCase
from domains.toy.config import ModelConfig
from domains.toy.generator import CLASSES, WIDTH
from domains.toy.model import ToyTransformer
from domains.toy.optimizer import StackedAdamW
from domains.toy.stack import ModelStack

GROUP = "toy: a training step"
BATCH = 32
LENGTH = 20
MODELS = 75
ADAMW = OptimizerConfig(name="adamw", lr=1e-3)


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase]:
    """One run, and a group of runs, for variants without and with a norm of the keys."""
    yield SpeedCase(
        group=GROUP,
        name="one run, standard",
        baseline=lambda: _plain(device),
        candidate=lambda: _alone("standard", 1, device),
        against="nn.TransformerEncoderLayer",
        time_target=1.0,
    )
    for variant in ["quest"] if quick else ["standard", "quest", "qknorm_hs"]:
        yield SpeedCase(
            group=GROUP,
            name=f"{MODELS} runs, {variant}",
            baseline=lambda variant=variant: _alone(variant, MODELS, device),  # type: ignore[misc]
            candidate=lambda variant=variant: _stacked(variant, device),  # type: ignore[misc]
            against="the same runs one by one",
            time_target=0.1,
            memory=False,
        )


def _batch(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return tokens.to(device), labels.to(device)


def _net(variant: str, device: str) -> ToyTransformer:
    net = ToyTransformer(ModelConfig(), AttentionFactory(variant), length=LENGTH, norm="pre")
    return net.to(device)


def _alone(variant: str, models: int, device: str) -> Callable[[], object]:
    steps = [_step(_net(variant, device), *_batch(device)) for _ in range(models)]

    def all_steps() -> None:
        for step in steps:
            step()

    return all_steps


def _stacked(variant: str, device: str) -> Callable[[], object]:
    stack = ModelStack([_net(variant, device) for _ in range(MODELS)])
    tokens, labels = _batch(device)
    prepared, labels = stack.net.prepare(tokens), labels.repeat(MODELS)
    leaves = list(stack.parameters.values())
    rates = torch.full_like(stack.weights, ADAMW.lr)
    decays = torch.zeros_like(rates)
    optimizer = StackedAdamW(stack.weights, rates, decays, betas=ADAMW.betas, eps=ADAMW.eps)

    def step() -> None:
        losses = F.cross_entropy(stack.net.logits(prepared).flatten(0, 1), labels) * MODELS
        gradients = torch.autograd.grad(losses, leaves)
        optimizer.step(torch.cat([g.flatten(1) for g in gradients], dim=1))

    return step


def _plain(device: str) -> Callable[[], object]:
    return _step(_PlainTransformer().to(device), *_batch(device))


def _step(net: nn.Module, tokens: Tensor, labels: Tensor) -> Callable[[], object]:
    optimizer = build_optimizer(net, ADAMW)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(tokens), labels).backward()
        optimizer.step()

    return step


class _PlainTransformer(nn.Module):
    """The model as one writes it with PyTorch's own layer, for all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(WIDTH))
        self.positions = nn.Parameter(torch.zeros(1 + LENGTH, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 1, WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, classes)."""
        token = self.token.expand(len(tokens), 1, -1)
        x = self.layer(torch.cat([token, tokens], dim=1) + self.positions)
        logits: Tensor = self.classify(self.norm(x[:, 0]))
        return logits
