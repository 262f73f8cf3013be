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
from attention.variant import NEEDS_INPUT, NEEDS_STATE, Projections, Variant
from domains.common.dropout import DropPath
from domains.pointcloud.sparse_conv import SubmanifoldConv3d
from domains.pointcloud.stage import Stage

CONTEXT_KERNEL = 3
"""Edge of the kernel that tells a block where its points are."""


class Values:
    """Values of earlier attention layers, for variants that look at them.

    Lines change from layer to layer, so they are kept by point, (N, C). For one pass through the
    blocks of a stage.

    Attributes:
        first: of the first block, with their gradient.
        before: of the block before, without.
    """

    def __init__(self) -> None:
        self.first: Tensor | None = None
        self.before: Tensor | None = None


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
            dim=width,
            projections=dict.fromkeys(("q", "k", "v", "out"), (width, width)),
        )
        self._weights_change = type(self.core.variant).reparametrize is not Variant.reparametrize
        self.core.variant.adopt(self.projections())

    def forward(self, x: Tensor, stage: Stage, row: int, values: Values) -> Tensor:
        """(N, C) to (N, C).

        Args:
            x: features.
            stage: of the points.
            row: which of the stage's orders lines the points up.
            values: of the layers before; on return also of this one, if the variant looks at them.
        """
        gather = stage.gather[row]
        qkv = self._project(x)
        places = [group.places for group in stage.groups]

        def lined_up(by_point: Tensor | None) -> list[Tensor | None]:
            """(S, K, ...) for each group."""
            if by_point is None:
                return [None] * len(places)
            parts = by_point.index_select(0, gather).split(places)
            groups = zip(stage.groups, parts, strict=True)
            return [group.packing.pad(part) for group, part in groups]

        needs = self.core.variant.capabilities
        tokens = lined_up(x if NEEDS_INPUT in needs else None)
        grids = lined_up(None if self.positions is None else stage.voxels.grid)
        first, before = lined_up(values.first), lined_up(values.before)
        outs = []
        for number, (group, part) in enumerate(zip(stage.groups, lined_up(qkv), strict=True)):
            assert part is not None
            q, k, v = self._split(part, 3)
            out = self.core(
                q,
                k,
                v,
                key_padding_mask=group.mask,
                bias=self._bias(grids[number], q.dtype),
                state=self._state(first[number], before[number], group.mask),
                x=tokens[number],
            )
            outs.append(group.packing.unpad(out.transpose(1, 2).flatten(2)))
        if NEEDS_STATE in needs:
            own = qkv[:, 2 * x.shape[1] :]
            values.first = own if values.first is None else values.first
            values.before = own.detach()
        return self._project_out(torch.cat(outs).index_select(0, stage.scatter[row]))

    def _project(self, x: Tensor) -> Tensor:
        """(N, C) to queries, keys and values side by side, (N, 3 C)."""
        weight = self.qkv.weight
        if self._weights_change:
            change = self.core.variant.reparametrize
            weight = torch.cat([change(*role) for role in zip("qkv", weight.chunk(3), strict=True)])
        return F.linear(x, weight, self.qkv.bias)

    def _project_out(self, x: Tensor) -> Tensor:
        weight = self.core.variant.reparametrize("out", self.proj.weight)
        return F.linear(x, weight, self.proj.bias)

    def _bias(self, grid: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if grid is None or self.positions is None:
            return None
        bias: Tensor = self.positions(grid).to(dtype)
        return bias

    def _state(
        self, first: Tensor | None, before: Tensor | None, mask: Tensor | None
    ) -> LayerState:
        """What the layers before would have left, had they had the patches of this one."""
        state = LayerState()
        if first is not None and before is not None:
            state.layer, state.key_padding_mask = self.core.context.layer - 1, mask
            (state.first,), (state.values,) = self._split(first, 1), self._split(before, 1)
        return state

    def _split(self, packed: Tensor, kinds: int) -> tuple[Tensor, ...]:
        """(S, K, kinds * C) to `kinds` views (S, H, K, D)."""
        heads = packed.unflatten(2, (kinds, self.heads, -1))
        return heads.permute(2, 0, 3, 1, 4).unbind(0)

    def projections(self) -> Projections:
        """Weight and bias of each projection, views of the layer's own."""
        qkv = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        return {**dict(zip("qkv", qkv, strict=True)), "out": (self.proj.weight, self.proj.bias)}

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

    def forward(
        self, x: Tensor, stage: Stage, values: Values, seen: Tensor | None = None
    ) -> Tensor:
        """(N, C).

        Args:
            x: (N, C).
            stage: of the points.
            values: of the layers before.
            seen: (N, C) what the convolution sees in the place of x.
        """
        x = x + self.context(x if seen is None else seen, stage)
        row = self.layer % stage.num_orders
        x = x + self.drop_path(self.attention(self.norm_attention(x), stage, row, values))
        return x + self.drop_path(self.contract(F.gelu(self.expand(self.norm_mlp(x)))))
