"""Point Transformer V3: a U-shaped network over serialized points."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory
from domains.pointcloud.attention_blocks import Block, Values
from domains.pointcloud.batch import Batch
from domains.pointcloud.config import POINT_FEATURES, ModelConfig
from domains.pointcloud.pooling import Pooling, Unpooling, batch_norm
from domains.pointcloud.serialization import encode
from domains.pointcloud.sparse_conv import SubmanifoldConv3d
from domains.pointcloud.stage import Stage

STEM_KERNEL = 5


class PointTransformerV3(nn.Module):
    """Class scores of points.

    Source: Wu et al. 2024, arXiv 2312.10035; Pointcept/Pointcept at d74c646,
    `pointcept/models/point_transformer_v3/point_transformer_v3m1_base.py` and `DefaultSegmentorV2`
    of `pointcept/models/default.py` (MIT).

    Args:
        config: sizes and choices.
        classes: number of classes.
        attention: builds the attention of every block.
    """

    def __init__(self, config: ModelConfig, classes: int, attention: AttentionFactory) -> None:
        super().__init__()
        self.config = config
        widths, back_widths = config.encoder_channels, config.decoder_channels
        rate = config.drop_path
        self.stem = Stem(POINT_FEATURES, widths[0])
        build = partial(_blocks, config, attention)
        self.encoder_blocks = nn.ModuleList(
            map(build, widths, config.encoder_heads, _rates(config.encoder_depths, rate))
        )
        self.pooling = nn.ModuleList(map(Pooling, widths[:-1], widths[1:]))
        below = [*back_widths[1:], widths[-1]]
        self.unpooling = nn.ModuleList(map(Unpooling, below, widths[:-1], back_widths))
        # Rates fall on the way to the output, as they rise on the way from the input.
        falling = [stage[::-1] for stage in _rates(config.decoder_depths, rate)]
        self.decoder_blocks = nn.ModuleList(map(build, back_widths, config.decoder_heads, falling))
        self.head = nn.Linear(back_widths[0], classes)

    def forward(self, batch: Batch, draws: torch.Generator) -> Tensor:
        """(N, classes) scores of the points that the grid kept.

        Args:
            batch: scenes.
            draws: on the CPU; decides in which turn the orders come.
        """
        stage = self.line_up(batch.grid, batch.batch, draws)
        x = self.encoder_blocks[0](self.stem(batch.feat, stage), stage)
        finer = []
        for pooling, blocks in zip(self.pooling, self.encoder_blocks[1:], strict=True):
            skip, fine = x, stage
            x, stage, cluster = pooling(skip, fine, self._turn(draws, batch.grid.device))
            x = blocks(x, stage)
            finer.append((skip, fine, cluster))
        back = zip(self.unpooling, self.decoder_blocks, finer, strict=True)
        for unpooling, blocks, (skip, stage, cluster) in reversed(list(back)):
            x, beside = unpooling(x, skip, cluster)
            x = blocks(x, stage, beside if self.config.skip_context else None)
        scores: Tensor = self.head(x)
        return scores

    def line_up(self, grid: Tensor, batch: Tensor, draws: torch.Generator) -> Stage:
        """The stage of the points that come in.

        Args:
            grid: (N, 3) int64 voxels, at least 0.
            batch: (N,) int64 scene of each point.
            draws: see :meth:`forward`.
        """
        codes, depth = encode(grid, batch, self.config.orders)
        codes = codes[self._turn(draws, grid.device)]
        patch_size, packing = self.config.patch_size, self.config.packing
        return Stage(grid, batch, codes, depth, patch_size=patch_size, packing=packing)

    def _turn(self, draws: torch.Generator, device: torch.device) -> Tensor:
        """(L,) int64 permutation of the orders."""
        orders = len(self.config.orders)
        if not self.config.shuffle_orders:
            return torch.arange(orders, device=device)
        return torch.randperm(orders, generator=draws).to(device)


class Stem(nn.Module):
    """From a point's own features to the width of the first stage."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = SubmanifoldConv3d(width_in, width_out, STEM_KERNEL, bias=False)
        self.norm = batch_norm(width_out)

    def forward(self, x: Tensor, stage: Stage) -> Tensor:
        """(N, C_in) to (N, C_out)."""
        return F.gelu(self.norm(self.conv(x, stage.voxels)))


class Blocks(nn.ModuleList):
    """The blocks of a stage, one after the other."""

    def forward(self, x: Tensor, stage: Stage, seen: Tensor | None = None) -> Tensor:
        """(N, C); `seen` is what the convolution of the first block sees in the place of x."""
        values = Values()
        for block in self:
            x, seen = block(x, stage, values, seen), None
        return x


def _blocks(
    config: ModelConfig, attention: AttentionFactory, width: int, heads: int, rates: list[float]
) -> Blocks:
    return Blocks(
        Block(
            width,
            heads,
            mlp_ratio=config.mlp_ratio,
            drop_path=rate,
            patch_size=config.patch_size,
            relative_positions=config.relative_positions,
            attention=attention,
            layer=layer,
            num_layers=len(rates),
        )
        for layer, rate in enumerate(rates)
    )


def _rates(depths: list[int], largest: float) -> list[list[float]]:
    """Drop rates of the blocks of each stage, rising linearly from 0 over all of them."""
    rising = torch.linspace(0.0, largest, sum(depths), device="cpu").split(depths)
    return [stage.tolist() for stage in rising]
