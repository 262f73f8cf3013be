"""Small networks for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attention import AttentionFactory, registry
from domains.language.config import ModelConfig
from domains.language.interface import LanguageModel
from domains.language.transformer import Transformer
from domains.language.transformer_xl import TransformerXL

VOCABULARY = 30
FAMILIES = ("transformer", "transformer_xl")
CUTOFFS = [8, 15, 25]


def options_of(variant: str) -> dict[str, Any]:
    """Options without which a variant cannot serve a causal model."""
    return {"causal": True} if variant.startswith("elliptical") else {}


REFUSED = {
    ("transformer_xl", "differential"): "2 maps a head",
    ("transformer_xl", "qk_clip"): "sees the weights",
    ("transformer_xl", "sigma_reparam"): "sees the weights",
}
"""Variants that a family cannot serve, and why; all others it can."""


def variants(family: str) -> list[str]:
    """What a family serves."""
    return [name for name in registry.names() if (family, name) not in REFUSED]


def config(family: str = "transformer", **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "layers": 3,
        "width": 12,
        "heads": 2,
        "head_width": 6,
        "feedforward": 16,
        "dropout": 0.0,
        "cutoffs": CUTOFFS,
        "memory": 0 if family == "transformer" else 5,
    }
    return ModelConfig(family=family, **{**sizes, **changes})


def network(
    model: ModelConfig, variant: str = "standard", options: Any = None, vocabulary: int = VOCABULARY
) -> LanguageModel:
    """In float64, with weights far from the small initial ones so that all layers matter."""
    torch.manual_seed(0)
    factory = AttentionFactory(variant, options_of(variant) if options is None else options)
    net: LanguageModel
    if model.family == "transformer":
        net = Transformer(model, factory, vocabulary=vocabulary, longest=16)
    else:
        net = TransformerXL(model, factory, vocabulary=vocabulary)
    net.double()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if ".variant." not in name:
                parameter.add_(0.4 * torch.randn_like(parameter))
    return net


def tokens(batch: int, length: int, seed: int = 1, vocabulary: int = VOCABULARY) -> Tensor:
    """(batch, length + 1) int64; inputs are all but the last, targets all but the first."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length + 1), generator=generator)


def counted(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that one tensor held."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out
