"""Models to swap attentions in, each with an input, randomly initialised and without dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.attention.swapping.points import Cloud, SerializedAttention, points

WIDTH, HEADS, TOKENS = 16, 2, 5


class Case(NamedTuple):
    """A model in evaluation mode and a call of it that gives one tensor."""

    model: nn.Module
    run: Callable[[], Tensor]


def padding() -> Tensor:
    """(3, TOKENS) bool, True = padding, as torch has it."""
    lengths = torch.tensor([TOKENS, 3, 1])
    return torch.arange(TOKENS) >= lengths[:, None]


def tokens(count: int = TOKENS, *, width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(3, count, width, generator=torch.Generator().manual_seed(seed))


def shake(model: nn.Module) -> nn.Module:
    """Every parameter at random: biases and norms too, which start where mistakes do not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def bare(**kwargs: Any) -> Case:
    layer = shake(nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **kwargs}))
    x = tokens()
    context = tokens(7, width=kwargs.get("kdim", WIDTH), seed=2)
    value = tokens(7, width=kwargs.get("vdim", WIDTH), seed=3)

    def run() -> Tensor:
        inputs = (x, context, value) if "kdim" in kwargs else (x, x, x)
        if not layer.batch_first:
            inputs = tuple(each.transpose(0, 1) for each in inputs)
        return layer(*inputs)[0]

    return Case(layer, run)


def encoder(**kwargs: Any) -> Case:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, **kwargs)
    model = shake(nn.TransformerEncoder(layer, 3, enable_nested_tensor=not kwargs))
    x = tokens()
    return Case(model, lambda: model(x, src_key_padding_mask=padding()))


def decoder() -> Case:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    model = shake(nn.TransformerDecoder(layer, 2))
    x, memory = tokens(4), tokens(seed=2)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    return Case(model, lambda: model(x, memory, tgt_mask=causal, memory_key_padding_mask=padding()))


def transformer() -> Case:
    model = shake(nn.Transformer(WIDTH, HEADS, 2, 2, 32, dropout=0.0))
    source, target = tokens().transpose(0, 1), tokens(4, seed=2).transpose(0, 1)
    return Case(model, lambda: model(source, target))


def gps() -> Case:
    from torch_geometric.nn import GCNConv, GPSConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                GPSConv(WIDTH, GCNConv(WIDTH, WIDTH), heads=HEADS, norm="layer_norm")
                for _ in range(2)
            )

        def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x, edges, batch)
            return x

    model = shake(Net())
    x = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(4))
    edges = torch.tensor([[0, 1, 2, 4, 5, 7], [1, 2, 3, 5, 6, 8]])
    batch = torch.tensor([0] * 4 + [1] * 3 + [2] * 2)
    return Case(model, lambda: model(x, edges, batch))


def cloud(**kwargs: Any) -> Case:
    model = shake(Cloud(**kwargs))
    return Case(model, lambda: model(points()).feat)


CASES: dict[str, Callable[[], Case]] = {
    "multihead": bare,
    "multihead, sequence first": lambda: bare(batch_first=False),
    "multihead without bias": lambda: bare(bias=False),
    "multihead, other widths": lambda: bare(kdim=12, vdim=20),
    "encoder": encoder,
    "encoder, norm first": lambda: encoder(norm_first=True),
    "decoder": decoder,
    "transformer": transformer,
    "gps": gps,
    "points": cloud,
    "points, relative positions": lambda: cloud(enable_rpe=True, qkv_bias=False),
}


def scale_keys(model: nn.Module, factor: float) -> None:
    """Multiply every projection to keys, weight and bias."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                width = module.embed_dim
                if module.in_proj_weight is None:
                    module.k_proj_weight.mul_(factor)
                else:
                    module.in_proj_weight[width : 2 * width].mul_(factor)
                if module.in_proj_bias is not None:
                    module.in_proj_bias[width : 2 * width].mul_(factor)
            elif isinstance(module, SerializedAttention):
                for parameter in module.qkv.parameters():
                    parameter[module.channels : 2 * module.channels].mul_(factor)
