"""Small clouds and stored vectors for the tests of the model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention import AttentionFactory
from domains.pointcloud.batch import Batch
from domains.pointcloud.config import ModelConfig
from domains.pointcloud.model import PointTransformerV3
from domains.pointcloud.serialization import encode
from domains.pointcloud.stage import Stage

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


@cache
def stored(name: str) -> dict[str, Tensor]:
    """Arrays of a file of `tests/vectors/`."""
    with np.load(VECTORS / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def distinct_voxels(number: int, edge: int, seed: int = 0) -> Tensor:
    """(number, 3) int64, no two alike, each from 0 to edge - 1."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randperm(edge**3, generator=generator)[:number]
    return torch.stack([flat // edge**2, flat // edge % edge, flat % edge], dim=1)


def scenes(*sizes: int, edge: int = 12, seed: int = 0) -> Batch:
    """A batch of scenes with distinct voxels and random features and labels."""
    generator = torch.Generator().manual_seed(seed)
    parts = [distinct_voxels(size, edge, seed + number) for number, size in enumerate(sizes)]
    grid = torch.cat(parts)
    feat = torch.randn(len(grid), 4, generator=generator)
    return batch_of(grid, feat, torch.tensor(sizes), generator)


def batch_of(
    grid: Tensor, feat: Tensor, counts: Tensor, generator: torch.Generator | None = None
) -> Batch:
    """Scenes of so many points each, with random labels."""
    label = torch.randint(-1, 16, (len(grid),), generator=generator)
    return Batch(
        coord=grid * 0.05,
        grid=grid,
        feat=feat,
        label=label,
        batch=torch.repeat_interleave(counts),
        offset=counts.cumsum(0),
        inverse=torch.arange(len(grid)),
        full_label=label,
        split="val",
    )


def selected(batch: Batch, rows: Tensor) -> Batch:
    """Some points of a batch of one scene, in the order of `rows`."""
    label = batch.label[rows]
    return Batch(
        coord=batch.coord[rows],
        grid=batch.grid[rows],
        feat=batch.feat[rows],
        label=label,
        batch=torch.zeros(len(rows), dtype=torch.long),
        offset=torch.tensor([len(rows)]),
        inverse=torch.arange(len(rows)),
        full_label=label,
        split=batch.split,
    )


def stage_of(batch: Batch, orders: list[str], patch_size: int, packing: str = "patches") -> Stage:
    codes, depth = encode(batch.grid, batch.batch, orders)
    return Stage(batch.grid, batch.batch, codes, depth, patch_size=patch_size, packing=packing)


def small_config(**changes: object) -> ModelConfig:
    """Three stages, 16 wide and up."""
    sizes = {
        "encoder_depths": [1, 2, 1],
        "encoder_channels": [16, 32, 32],
        "encoder_heads": [1, 2, 2],
        "decoder_depths": [1, 1],
        "decoder_channels": [16, 32],
        "decoder_heads": [1, 2],
        "patch_size": 16,
    }
    return ModelConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def small_net(variant: str = "standard", seed: int = 0, **changes: object) -> PointTransformerV3:
    torch.manual_seed(seed)
    return PointTransformerV3(small_config(**changes), 16, AttentionFactory(variant))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
