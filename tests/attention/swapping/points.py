"""A stand-in for the serialized attention of Pointcept: its names, and what it computes, slowly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def flash(packed: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """What the library computes, patch by patch, with its checks."""
    assert packed.dtype in (torch.float16, torch.bfloat16)
    assert ends.dtype == torch.int32
    assert int(ends.diff().max()) <= options["max_seqlen"]
    calls.append(options)
    out = []
    for patch in packed.float().split(ends.diff().tolist()):
        q, k, v = patch.permute(1, 2, 0, 3)
        out.append((q @ k.mT * options["softmax_scale"]).softmax(-1) @ v)
    return torch.cat([part.transpose(0, 1) for part in out]).to(packed.dtype)


calls: list[dict[str, Any]] = []
"""Options of the calls of the library."""

flash_attn = SimpleNamespace(flash_attn_varlen_qkvpacked_func=flash)


class Points(dict[str, Any]):
    """One thing as key and attribute."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class RPE(nn.Module):
    """A learned number for each axis, by the clamped distance in voxels."""

    def __init__(self, patch_size: int, num_heads: int) -> None:
        super().__init__()
        self.pos_bnd = int((4 * patch_size) ** (1 / 3) * 2)
        self.rpe_table = nn.Parameter(torch.randn(3 * (2 * self.pos_bnd + 1), num_heads))

    def forward(self, distance: Tensor) -> Tensor:
        """(S, K, K, 3) to (S, H, K, K)."""
        rows = distance.clamp(-self.pos_bnd, self.pos_bnd) + self.pos_bnd
        x, y, z = self.rpe_table.chunk(3)
        found = [functional.embedding(rows[..., i], table) for i, table in enumerate((x, y, z))]
        return (found[0] + found[1] + found[2]).permute(0, 3, 1, 2)


class SerializedAttention(nn.Module):
    """Attributes, parts and methods of the class that a swap relies on."""

    half = torch.bfloat16
    """What the flash path casts to."""

    def __init__(
        self,
        channels: int = 16,
        num_heads: int = 2,
        patch_size: int = 4,
        *,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        order_index: int = 0,
        enable_rpe: bool = False,
        enable_flash: bool = False,
        upcast: bool = False,
    ) -> None:
        super().__init__()
        self.channels, self.num_heads, self.order_index = channels, num_heads, order_index
        self.scale = qk_scale or (channels // num_heads) ** -0.5
        self.upcast_attention = self.upcast_softmax = upcast
        self.enable_rpe, self.enable_flash = enable_rpe, enable_flash
        if enable_flash:
            self.patch_size, self.attn_drop = patch_size, attn_drop
        else:
            self.patch_size, self.patch_size_max = 0, patch_size
            self.attn_drop = nn.Dropout(attn_drop)
        self.qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        self.proj = nn.Linear(channels, channels)
        self.proj_drop = nn.Dropout(0.0)
        self.softmax = nn.Softmax(dim=-1)
        self.rpe = RPE(patch_size, num_heads) if enable_rpe else None

    def get_padding_and_inverse(self, point: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Places in the line of all patches, where each point stands in them, ends of patches."""
        pad, unpad, ends, start = [], [], [0], 0
        for end in point.offset.tolist():
            scene, number = list(range(start, end)), end - start
            unpad += range(len(pad), len(pad) + number)
            if number > self.patch_size:
                full = -(-number // self.patch_size) * self.patch_size
                scene += scene[number - self.patch_size : full - self.patch_size]
            pad += scene
            ends += [*range(ends[-1] + self.patch_size, len(pad), self.patch_size), len(pad)]
            start = end
        return torch.tensor(pad), torch.tensor(unpad), torch.tensor(ends, dtype=torch.int32)

    def get_rel_pos(self, point: Any, order: Tensor) -> Tensor:
        grid = point.grid_coord[order].view(-1, self.patch_size, 3)
        return grid[:, :, None] - grid[:, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Of one patch: each (K, H, D), and (H, K, K)."""
        scores = torch.einsum("qhd,khd->hqk", q * self.scale, k) + bias
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(v.dtype), v)

    def forward(self, point: Any) -> Any:
        if not self.enable_flash:
            smallest = min(point.offset.diff(prepend=torch.zeros(1).long()).tolist())
            self.patch_size = min(smallest, self.patch_size_max)
        pad, unpad, ends = self.get_padding_and_inverse(point)
        line = point.serialized_order[self.order_index][pad]
        qkv = self.qkv(point.feat)[line].unflatten(1, (3, self.num_heads, -1))
        if self.enable_flash:
            out = flash_attn.flash_attn_varlen_qkvpacked_func(
                qkv.to(self.half),
                ends,
                max_seqlen=self.patch_size,
                dropout_p=self.attn_drop if self.training else 0,
                softmax_scale=self.scale,
            ).to(qkv.dtype)
        else:
            patches = qkv.split(self.patch_size)
            biases = torch.zeros(len(patches), 1, 1, 1)
            if self.rpe is not None:
                biases = self.rpe(self.get_rel_pos(point, line))
            pairs = zip(patches, biases, strict=True)
            out = torch.cat([self.attend(*patch.unbind(1), bias) for patch, bias in pairs])
        out = out.flatten(1)[unpad[point.serialized_inverse[self.order_index]]]
        point.feat = self.proj_drop(self.proj(out))
        return point


class Cloud(nn.Module):
    """Two of them, whose points stand in other lines."""

    def __init__(
        self, kind: type[SerializedAttention] = SerializedAttention, **kwargs: Any
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(order_index=index, **kwargs) for index in range(2))

    def forward(self, point: Any) -> Any:
        for block in self.blocks:
            before = point.feat
            point = block(point)
            point.feat = point.feat + before
        return point


def points(width: int = 16) -> Points:
    """Two scenes, of seven and five points."""
    draws = torch.Generator().manual_seed(5)
    lines = [
        torch.cat([torch.randperm(7, generator=draws), 7 + torch.randperm(5, generator=draws)])
        for _ in range(2)
    ]
    return Points(
        feat=torch.randn(12, width, generator=draws),
        grid_coord=torch.randint(0, 9, (12, 3), generator=draws),
        offset=torch.tensor([7, 12]),
        serialized_order=torch.stack(lines),
        serialized_inverse=torch.stack(lines).argsort(1),
    )
