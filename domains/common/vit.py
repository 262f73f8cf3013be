"""Vision Transformer, with attention from a factory and parameters named as in timm.

The names (`patch_embed.proj`, `blocks.0.attn.qkv`, `blocks.0.mlp.fc1`, ...) are those of
`timm/models/vision_transformer.py` and of the published DeiT weights, so that these load as they
are; what a variant learns is added under `blocks.0.attn.core`.

Shapes: B pictures, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory, LayerState
from attention.variant import Projections
from domains.common.dropout import Dropout, DropPath

INIT_SD = 0.02
"""Of linear weights, tokens and positions, cut off at two units as in timm."""


@dataclass(frozen=True)
class BlockSizes:
    """What the layers of a stack have in common.

    Attributes:
        layers: number of layers.
        width: width of the residual stream.
        heads: attention heads.
        feedforward: hidden width of the feed-forward maps.
        dropout: rate on attention weights, on the attention's output and in the feed-forward maps.
        drop_path: stochastic depth of the last layer, risen linearly from 0 at the first; of a
            stack of one layer, 0.
        layer_scale: initial value of a learned factor on every channel of what a layer adds; None
            without it.
        norm_eps: of every LayerNorm.
    """

    layers: int
    width: int
    heads: int
    feedforward: int
    dropout: float = 0.0
    drop_path: float = 0.0
    layer_scale: float | None = None
    norm_eps: float = 1e-6


class Attention(nn.Module):
    """Self-attention with one weight for queries, keys and values, as timm stores it."""

    def __init__(self, sizes: BlockSizes, attention: AttentionFactory, layer: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.core = attention.core(
            sizes.heads,
            sizes.width // sizes.heads,
            dropout=sizes.dropout,
            layer=layer,
            num_layers=sizes.layers,
            layer_state=True,
            requests=(),
            dim=sizes.width,
            projections=dict.fromkeys(("q", "k", "v", "out"), (sizes.width, sizes.width)),
        )
        self.proj = nn.Linear(sizes.width, sizes.width)
        self.dropout = Dropout(sizes.dropout)
        self.core.variant.adopt(self.projections())

    def projections(self) -> Projections:
        """Weight and bias of each projection; those of q, k and v are views of one."""
        parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        return {**dict(zip("qkv", parts, strict=True)), "out": (self.proj.weight, self.proj.bias)}

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        tags = {"qkv": "qkv", "proj": "ov"}
        return {f"{name}.{part}": tag for name, tag in tags.items() for part in ("weight", "bias")}

    def forward(self, x_bnd: Tensor, state: LayerState) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        # Three products with parts of the weight: a variant that replaces the keys lets go of the
        # projected ones, which would live on as a part of one product.
        change, weights = self.core.variant.reparametrize, self.projections()
        q, k, v = (
            F.linear(x_bnd, change(role, weights[role][0]), weights[role][1])
            .unflatten(-1, (self.heads, -1))
            .transpose(1, 2)
            for role in "qkv"
        )
        attended = self.core(q, k, v, state=state, x=x_bnd).transpose(1, 2).flatten(2)
        out: Tensor = F.linear(attended, change("out", self.proj.weight), self.proj.bias)
        out = self.dropout(out)
        return out


class Mlp(nn.Module):
    """Feed-forward maps with GELU."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_bnd: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        hidden = self.dropout(F.gelu(self.fc1(x_bnd)))
        out: Tensor = self.dropout(self.fc2(hidden))
        return out


class LayerScale(nn.Module):
    """A learned factor on every channel (Touvron et al. 2021, arXiv 2103.17239)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), initial))

    def forward(self, x_bnd: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        return x_bnd * self.gamma


class Block(nn.Module):
    """x = x + Attention(LN(x)); x = x + Mlp(LN(x)); either scaled, with stochastic depth."""

    def __init__(self, sizes: BlockSizes, attention: AttentionFactory, layer: int) -> None:
        super().__init__()
        width, scale = sizes.width, sizes.layer_scale
        self.norm1 = nn.LayerNorm(width, eps=sizes.norm_eps)
        self.attn = Attention(sizes, attention, layer)
        self.ls1 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.norm2 = nn.LayerNorm(width, eps=sizes.norm_eps)
        self.mlp = Mlp(width, sizes.feedforward, sizes.dropout)
        self.ls2 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop_path = DropPath(sizes.drop_path * layer / max(1, sizes.layers - 1))

    def forward(self, x_bnd: Tensor, state: LayerState) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        x_bnd = x_bnd + self.drop_path(self.ls1(self.attn(self.norm1(x_bnd), state)))
        out: Tensor = x_bnd + self.drop_path(self.ls2(self.mlp(self.norm2(x_bnd))))
        return out


def blocks(sizes: BlockSizes, attention: AttentionFactory) -> nn.ModuleList:
    """The layers of a stack, for :func:`run_blocks`."""
    return nn.ModuleList(Block(sizes, attention, layer) for layer in range(sizes.layers))


def run_blocks(layers: Iterable[nn.Module], x_bnd: Tensor) -> Tensor:
    """(B, N, D) through all layers of a stack."""
    state = LayerState()
    for layer in layers:
        x_bnd = layer(x_bnd, state)
    return x_bnd


class PatchEmbed(nn.Module):
    """A linear map of every patch."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), sides multiples of the patch, to (B, H / patch * W / patch, D)."""
        embedded: Tensor = self.proj(images)
        return embedded.flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """ViT as in DeiT: Touvron et al. 2021, arXiv 2012.12877 (Ti, S, B); Dosovitskiy et al. 2021.

    Args:
        sizes: of the layers.
        attention: builds the attention cores.
        image_size: sides (H, W) in pixels that the learned positions are for; other pictures get
            resized positions.
        patch: side of a patch.
        class_token: whether a learned token stands before the patches.
        classes: of a classifier on that token (or, without it, on the mean of the patches); None
            for none.
        resize: how positions are resized, `bilinear` or `bicubic`.
    """

    def __init__(
        self,
        sizes: BlockSizes,
        attention: AttentionFactory,
        *,
        image_size: tuple[int, int],
        patch: int,
        class_token: bool = True,
        classes: int | None = None,
        resize: str = "bilinear",
    ) -> None:
        super().__init__()
        self.patch = patch
        self.grid = (image_size[0] // patch, image_size[1] // patch)
        self.resize = resize
        self.num_extra = int(class_token)
        positions = self.grid[0] * self.grid[1] + self.num_extra
        self.patch_embed = PatchEmbed(patch, sizes.width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, sizes.width)) if class_token else None
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, sizes.width))
        self.dropout = Dropout(sizes.dropout)
        self.blocks = blocks(sizes, attention)
        self.norm = nn.LayerNorm(sizes.width, eps=sizes.norm_eps)
        self.head = None if classes is None else nn.Linear(sizes.width, classes)
        for drawn in (self.pos_embed, self.cls_token):
            if drawn is not None:
                nn.init.trunc_normal_(drawn, std=INIT_SD)
        self.apply(init_linear)

    def forward_features(self, images: Tensor) -> Tensor:
        """Tokens after the last norm.

        Args:
            images: (B, 3, H, W) with sides that are multiples of the patch.

        Returns:
            (B, N, D), class token first.
        """
        x = self.patch_embed(images)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        grid = (images.shape[2] // self.patch, images.shape[3] // self.patch)
        positions = self.pos_embed
        if grid != self.grid:
            positions = resize_positions(positions, self.grid, grid, self.num_extra, self.resize)
        x = run_blocks(self.blocks, self.dropout(x + positions))
        out: Tensor = self.norm(x)
        return out

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) where there is a classifier, else the tokens (B, N, D)."""
        x = self.forward_features(images)
        if self.head is None:
            return x
        logits: Tensor = self.head(x[:, 0] if self.num_extra else x.mean(dim=1))
        return logits


def resize_positions(
    positions: Tensor, old: tuple[int, int], new: tuple[int, int], extra: int, mode: str
) -> Tensor:
    """Learned positions of one grid of patches for another.

    Args:
        positions: (1, extra + old[0] * old[1], D).
        old: rows and columns of the grid that they are for.
        new: rows and columns wanted.
        extra: leading tokens without a place in the picture; they keep theirs.
        mode: `bilinear` or `bicubic`, without antialiasing and with `align_corners=False`.

    Returns:
        (1, extra + new[0] * new[1], D).

    Source: rstrudel/segmenter at 20d1bfa, `segm/model/utils.py`, `resize_pos_embed` (bilinear).
    """
    kept, grid = positions[:, :extra], positions[:, extra:]
    grid = grid.unflatten(1, old).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=new, mode=mode, align_corners=False)
    return torch.cat([kept, grid.flatten(2).transpose(1, 2)], dim=1)


def init_linear(module: nn.Module) -> None:
    """timm's initial values of linear maps, for `Module.apply`; leaves all else as it is."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=INIT_SD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
