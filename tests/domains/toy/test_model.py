"""The model against the whole layer, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attention import AttentionFactory
from domains.toy.config import ModelConfig
from domains.toy.model import ToyTransformer


def net_of(norm: str = "pre", variant: str = "standard", **options: float) -> ToyTransformer:
    torch.manual_seed(0)
    net = ToyTransformer(ModelConfig(**options), AttentionFactory(variant), length=20, norm=norm)
    with torch.no_grad():
        for parameter in net.parameters():  # norms and positions that do something
            parameter += 0.1 * torch.randn_like(parameter)
    return net.double()


def tokens(samples: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 20, 20, generator=generator, dtype=torch.float64)


def whole_layer(net: ToyTransformer, x: Tensor, quest: bool) -> Tensor:
    """The layer for all tokens, then a classifier on the first one."""
    w = dict(net.named_parameters())

    def linear(name: str, h: Tensor) -> Tensor:
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, h: Tensor) -> Tensor:
        centred = h - h.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attend(h: Tensor) -> Tensor:
        q, k, v = (linear(f"attention.{name}_proj", h) for name in "qkv")
        k = k / k.norm(dim=-1, keepdim=True) if quest else k / 20**0.5
        return linear("attention.out_proj", (q @ k.mT).softmax(-1) @ v)

    def feedforward(h: Tensor) -> Tensor:
        return linear("contract", F.gelu(linear("expand", h)))

    token = w["embedding.token"].expand(len(x), 1, 20)
    x = torch.cat([token, x], dim=1) + w["embedding.positions"]
    if net.placement == "pre":
        x = x + attend(norm("norm1", x))
        x = norm("norm", x + feedforward(norm("norm2", x)))
    elif net.placement == "post":
        x = norm("norm1", x + attend(x))
        x = norm("norm2", x + feedforward(x))
    else:
        x = x + attend(x)
        x = x + feedforward(x)
    return linear("classify", x[:, 0])


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("variant", ["standard", "quest"])
def test_equals_the_whole_layer(norm: str, variant: str) -> None:
    net, x = net_of(norm, variant), tokens()
    assert torch.allclose(net(x), whole_layer(net, x, variant == "quest"), atol=1e-12)


def test_every_parameter_gets_a_gradient() -> None:
    for norm in ("pre", "post", "none"):
        net = net_of(norm, "quest")
        net(tokens()).square().sum().backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0.0, name


def test_parameters_of_the_paper_s_sizes() -> None:
    """[CLS] 20, positions 21 x 20, attention and feed-forward 6 x 420, norms 3 x 40, head 210."""
    assert sum(p.numel() for p in net_of().parameters()) == 20 + 420 + 6 * 420 + 120 + 210
    net = net_of(feedforward=5)
    assert net.expand.weight.shape == (5, 20)


def test_initial_values_are_truncated_at_two_deviations() -> None:
    torch.manual_seed(0)
    config = ModelConfig(token_sd=0.5)
    net = ToyTransformer(config, AttentionFactory(), length=200, norm="pre")
    positions = net.embedding.positions
    assert positions.abs().max() <= 1.0
    # sd of a normal distribution cut at two deviations: 0.88
    assert positions.std().item() == pytest.approx(0.88 * 0.5, rel=0.05)


def test_looks_are_those_of_the_forward_pass() -> None:
    net, x = net_of(variant="quest"), tokens()
    seen: list[Tensor] = []
    net.attention.core.register_forward_pre_hook(lambda core, given: seen.extend(given))
    net(x)
    q, k, _ = seen
    looks = net.looks(x)
    assert torch.allclose(looks.key_norms, k[:, 0].norm(dim=-1))
    assert torch.allclose(looks.query_norms, q[:, 0, 0].norm(dim=-1))
    logits = q @ (k / k.norm(dim=-1, keepdim=True)).mT
    assert torch.allclose(looks.weights, logits.softmax(-1)[:, 0, 0])
