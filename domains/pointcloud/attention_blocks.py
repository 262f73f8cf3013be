"""The block of Point Transformer V3: convolution, serialized attention, MLP.

Shapes: N points, C width, H heads, S patches of one group, K points of the longest.

Source: Pointcept/Pointcept at d74c646,
`pointcept/models/point_transformer_v3/point_transformer_v3m1_base.py` (MIT); values and gradients
equal its attention (`tests/domains/pointcloud/test_attention_blocks.py`), with one difference on
purpose: without a fused kernel it shrinks the patches of a batch to its smallest scene, here a
patch has its size under every kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention import AttentionFactory, LayerState
from attention.variant import NEEDS_STATE
from domains.pointcloud.sparse_conv import SubmanifoldConv3d
from domains.pointcloud.stage import Stage

CONTEXT_KERNEL = 3
"""Edge of the kernel that tells a block where its points are."""


class Values:
    """Values of the attention layer before, for variants that compare layers with one another.

    Lines change from layer to layer, so they are kept by point. For one pass through the blocks of
    a stage.
    """

    def __init__(self) -> None:
        self.by_point: Tensor | None = None


class PatchAttention(nn.Module):
    """Multi-head attention inside patches of a line of points.

    Args:
        width: C.
        heads: H.
        patch_size: K of a full patch.
        relative_positions: see `domains.pointcloud.config.ModelConfig`.
        attention: builds what stands between the projections.
        layer: index of the block in its stage.
        num_layers: blocks of the stage.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        patch_size: int,
        relative_positions: bool,
        attention: AttentionFactory,
        layer: int,
        num_layers: int,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.positions = RelativePositions(heads, patch_size) if relative_positions else None
        self.core = attention.core(
            heads,
            width // heads,
            layer=layer,
            num_layers=num_layers,
            layer_state=True,
            requests={"padding", "bias"} if relative_positions else {"padding"},
        )

    def forward(self, x: Tensor, stage: Stage, row: int, values: Values) -> Tensor:
        """(N, C) to (N, C).

        Args:
            x: features.
            stage: of the points.
            row: which of the stage's orders lines the points up.
            values: of the layer before; those of this one on return, if the variant looks at them.
        """
        gather = stage.gather[row]
        qkv = self.qkv(x)
        before = None
        if NEEDS_STATE in self.core.variant.capabilities:
            width = x.shape[1]
            if values.by_point is not None:
                before = values.by_point.index_select(0, gather)
            values.by_point = qkv[:, 2 * width :].detach()
        grid = None if self.positions is None else stage.voxels.grid.index_select(0, gather)
        places = [group.places for group in stage.groups]
        starts = [sum(places[:number]) for number in range(len(places))]
        parts = []
        gathered = qkv.index_select(0, gather).split(places)
        for group, start, part in zip(stage.groups, starts, gathered, strict=True):
            here = slice(start, start + group.places)
            q, k, v = self._split(group.packing.pad(part), 3)
            state = LayerState()
            if before is not None:
                state.layer, state.key_padding_mask = self.core.context.layer - 1, group.mask
                (state.values,) = self._split(group.packing.pad(before[here]), 1)
            bias = None
            if self.positions is not None and grid is not None:
                bias = self.positions(group.packing.pad(grid[here])).to(q.dtype)
            out = self.core(q, k, v, key_padding_mask=group.mask, bias=bias, state=state)
            parts.append(group.packing.unpad(out.transpose(1, 2).flatten(2)))
        out = torch.cat(parts).index_select(0, stage.scatter[row])
        attended: Tensor = self.proj(out)
        return attended

    def _split(self, packed: Tensor, kinds: int) -> tuple[Tensor, ...]:
        """(S, K, kinds * C) to `kinds` views (S, H, K, D)."""
        heads = packed.unflatten(2, (kinds, self.heads, -1))
        return heads.permute(2, 0, 3, 1, 4).unbind(0)

    def parameter_tags(self) -> dict[str, str]:
        """Tag of each own parameter, see :mod:`attention.tags`."""
        return {
            f"{layer}.{name}": tag
            for layer, tag in (("qkv", "qkv"), ("proj", "ov"))
            for name in ("weight", "bias")
        }


class RelativePositions(nn.Module):
    """A bias on the logits: for each axis a learned number by the clamped distance in voxels.

    Args:
        heads: H.
        patch_size: K of a full patch; larger patches reach further.
    """

    def __init__(self, heads: int, patch_size: int) -> None:
        super().__init__()
        # In floating point, as the checkpoints have it: 7 for 16 points, where 64^(1/3) is 4.
        self.reach = int((4 * patch_size) ** (1 / 3) * 2)
        self.table = nn.Parameter(torch.empty(3 * (2 * self.reach + 1), heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, grid: Tensor) -> Tensor:
        """(S, H, K, K) bias of a query (third axis) on a key (fourth).

        Args:
            grid: (S, K, 3) int64 voxels.
        """
        distance = grid[:, :, None] - grid[:, None]
        rows = distance.clamp(-self.reach, self.reach) + self.reach
        tables = self.table.unflatten(0, (3, -1))
        looked_up = [F.embedding(rows[..., axis], tables[axis]) for axis in range(3)]
        return (looked_up[0] + looked_up[1] + looked_up[2]).permute(0, 3, 1, 2)


class DropPath(nn.Module):
    """Leaves a branch out for each point by itself, at `rate`, and scales the others up.

    The features of all scenes lie end to end, so that the published code, which drops rows, drops
    points and not scenes.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(N, C)."""
        if not self.training or self.rate == 0.0:
            return x
        kept = x.new_empty(len(x), 1).bernoulli_(1.0 - self.rate)
        return x * kept.div_(1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Context(nn.Module):
    """What a block is told of its points' surroundings: convolution, linear map, LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = SubmanifoldConv3d(width, width, CONTEXT_KERNEL, bias=True)
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, stage: Stage) -> Tensor:
        """(N, C)."""
        out: Tensor = self.norm(self.linear(self.conv(x, stage.voxels)))
        return out


class Block(nn.Module):
    """x + context, then + attention of the normed, then + MLP of the normed.

    Args:
        width: C.
        heads: H.
        mlp_ratio: hidden width of the MLP over C.
        drop_path: rate of both branches.
        patch_size, relative_positions, attention, layer, num_layers: see :class:`PatchAttention`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        mlp_ratio: int,
        drop_path: float,
        patch_size: int,
        relative_positions: bool,
        attention: AttentionFactory,
        layer: int,
        num_layers: int,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.context = Context(width)
        self.norm_attention = nn.LayerNorm(width)
        self.attention = PatchAttention(
            width,
            heads,
            patch_size=patch_size,
            relative_positions=relative_positions,
            attention=attention,
            layer=layer,
            num_layers=num_layers,
        )
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, mlp_ratio * width)
        self.contract = nn.Linear(mlp_ratio * width, width)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, stage: Stage, values: Values) -> Tensor:
        """(N, C)."""
        x = x + self.context(x, stage)
        row = self.layer % stage.num_orders
        x = x + self.drop_path(self.attention(self.norm_attention(x), stage, row, values))
        return x + self.drop_path(self.contract(F.gelu(self.expand(self.norm_mlp(x)))))
