"""A training step of the full network on one frame, and how its time divides (`make speed`).

The frame is the first one of the sample frames (`dataset=nuscenes_folder`) where they are, else a
made-up one with as many points. One baseline repeats, operation for
operation, what Pointcept at d74c646 does in its attention without a fused kernel: stored scores of
all patches, softmax, product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attention import AttentionFactory
from domains.contract import DataUnavailable
from domains.pointcloud import sources
from domains.pointcloud.attention_blocks import Block, PatchAttention, Values
from domains.pointcloud.batch import Batch
from domains.pointcloud.config import CLASSES, AugmentConfig, DatasetConfig, ModelConfig
from domains.pointcloud.frames import Frame
from domains.pointcloud.lovasz import cross_entropy, lovasz_softmax
from domains.pointcloud.model import PointTransformerV3
from domains.pointcloud.pooling import coarser
from domains.pointcloud.scenes import collate, read, thin
from domains.pointcloud.serialization import encode, ranks
from domains.pointcloud.sparse_conv import Voxels
from domains.pointcloud.stage import Stage
from domains.pointcloud.tiny import made_frame
from domains.pointcloud.transforms import augment
from domains.speed_cases import SpeedCase, TimeLimit

GROUP = "point clouds: a training step on one {} frame"
SHARES = "point clouds: parts of that step (the ratio is the share)"
PREPARATION = "point clouds: before a step, on one core"
POINTS, FRAMES = 100_000, 10
SAMPLE = DatasetConfig(name="nuscenes_folder", layout="folder", train=16, val=4)
FIRINGS = 1085
QUICK_FIRINGS = 60
GRID = 0.05
FULL = ModelConfig(skip_context=True)
QUICK = replace(FULL, encoder_channels=[16, 32, 64, 64, 64], encoder_heads=[1, 2, 4, 4, 4],
                decoder_channels=[32, 32, 64, 64], decoder_heads=[2, 2, 4, 4])  # fmt: skip

Step = Callable[[], object]


def cases(*, device: str, quick: bool) -> Iterator[SpeedCase | TimeLimit]:
    """QUEST against standard, our attention against stored scores, and the parts of a step."""
    model = QUICK if quick else FULL
    frame, which = _frame(quick)
    batch = _batch(frame, device)
    step = partial(_step, model, batch, device)
    yield SpeedCase(
        group=GROUP.format(which),
        name="quest",
        baseline=partial(step, "standard"),
        candidate=partial(step, "quest"),
        against="standard",
        time_target=1.03,
        memory_target=1.03,
        tokens=len(batch.coord),
    )
    yield SpeedCase(
        group=GROUP.format(which),
        name="serialized attention of the first stage",
        baseline=partial(_attention_step, model, batch, device, plain=True),
        candidate=partial(_attention_step, model, batch, device, plain=False),
        against="stored scores, as Pointcept without flash attention",
        time_target=0.40,
    )
    for name, part in (
        ("serialisation", _serialisation),
        ("convolution", _convolution),
        ("attention", _attention),
        ("pooling", _pooling),
    ):
        yield SpeedCase(
            group=SHARES,
            name=name,
            baseline=partial(step, "standard"),
            candidate=partial(part, model, batch, device),
            against="the whole step",
            memory=False,
        )
    yield TimeLimit(
        group=PREPARATION,
        name=f"places of {POINTS:,} points on four curves",
        prepare=_places,
        limit=0.15,
    )
    yield TimeLimit(
        group=PREPARATION,
        name=f"loading {FRAMES} frames: reading, augmentation, grid",
        prepare=partial(_loading, frame),
    )


def _frame(quick: bool) -> tuple[Frame, str]:
    if quick:
        return made_frame("speed", QUICK_FIRINGS), "made-up"
    try:
        found = sources.load(SAMPLE)
    except DataUnavailable:
        return made_frame("speed", FIRINGS), "made-up"
    return found.splits["train"][0], "real"


def _batch(frame: Frame, device: str) -> Batch:
    batch = collate([thin(read(frame), GRID, torch.Generator().manual_seed(0))], "train")
    moved = {
        key: value.to(device) for key, value in vars(batch).items() if isinstance(value, Tensor)
    }
    return replace(batch, **moved)


def _net(model: ModelConfig, device: str, variant: str = "standard") -> PointTransformerV3:
    torch.manual_seed(0)
    return PointTransformerV3(model, CLASSES, AttentionFactory(variant)).to(device)


def _step(model: ModelConfig, batch: Batch, device: str, variant: str) -> Step:
    net = _net(model, device, variant)

    def step() -> None:
        net.zero_grad()
        scores = net(batch, torch.Generator().manual_seed(0))
        (cross_entropy(scores, batch.label) + lovasz_softmax(scores, batch.label)).backward()

    return step


def _attention_step(model: ModelConfig, batch: Batch, device: str, *, plain: bool) -> Step:
    net = _net(model, device)
    stage = net.line_up(batch.grid, batch.batch, torch.Generator().manual_seed(0))
    layer = net.encoder_blocks[0][0].attention
    x = torch.randn(len(stage), model.encoder_channels[0], device=device)
    run = partial(_stored_scores, layer, x, stage) if plain else partial(layer, x, stage, 0)

    def step() -> None:
        layer.zero_grad()
        (run() if plain else run(Values())).sum().backward()

    return step


def _stored_scores(layer: PatchAttention, x: Tensor, stage: Stage) -> Tensor:
    """Attention of one scene of more than a patch, with a matrix of scores."""
    patch, heads = stage.patch_size, layer.heads
    qkv = layer.qkv(x)[stage.gather[0]].view(-1, patch, 3, heads, x.shape[1] // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    weights = ((q * q.shape[-1] ** -0.5) @ k.mT).softmax(-1)
    out = (weights @ v).transpose(1, 2).reshape(-1, x.shape[1])
    projected: Tensor = layer.proj(out[stage.scatter[0]])
    return projected


class _Rung(NamedTuple):
    """A stage, with the voxel of the next coarser one that each point goes to."""

    stage: Stage
    cluster: Tensor | None


def _ladder(net: PointTransformerV3, batch: Batch) -> list[_Rung]:
    turn = torch.arange(len(net.config.orders), device=batch.grid.device)
    stage = net.line_up(batch.grid, batch.batch, torch.Generator().manual_seed(0))
    rungs = []
    for _ in net.pooling:
        coarse, cluster, _ = coarser(stage, turn)
        rungs.append(_Rung(stage, cluster))
        stage = coarse
    return [*rungs, _Rung(stage, None)]


def _blocks(net: PointTransformerV3, rungs: Sequence[_Rung]) -> Iterator[tuple[Block, Stage]]:
    for side in (net.encoder_blocks, net.decoder_blocks):
        for blocks, rung in zip(side, rungs, strict=False):
            for block in blocks:
                yield block, rung.stage


def _serialisation(model: ModelConfig, batch: Batch, device: str) -> Step:
    net = _net(model, device)
    return lambda: _ladder(net, batch)


def _convolution(model: ModelConfig, batch: Batch, device: str) -> Step:
    """All convolutions, with the search of the neighbours."""
    net = _net(model, device)
    rungs = _ladder(net, batch)
    inputs = [_random(block.context.linear, stage, device) for block, stage in _blocks(net, rungs)]

    def step() -> None:
        voxels = [Voxels(rung.stage.voxels.grid, rung.stage.voxels.batch) for rung in rungs]
        found = {id(rung.stage): own for rung, own in zip(rungs, voxels, strict=True)}
        net.stem.conv(batch.feat, voxels[0]).sum().backward()
        for x, (block, stage) in zip(inputs, _blocks(net, rungs), strict=True):
            block.context.conv(x, found[id(stage)]).sum().backward()

    return step


def _attention(model: ModelConfig, batch: Batch, device: str) -> Step:
    net = _net(model, device)
    rungs = _ladder(net, batch)
    inputs = [_random(block.context.linear, stage, device) for block, stage in _blocks(net, rungs)]

    def step() -> None:
        for x, (block, stage) in zip(inputs, _blocks(net, rungs), strict=True):
            row = block.layer % stage.num_orders
            block.attention(x, stage, row, Values()).sum().backward()

    return step


def _pooling(model: ModelConfig, batch: Batch, device: str) -> Step:
    """Pooling and unpooling, with the lines of the coarser stages, which serialisation has too."""
    net = _net(model, device)
    rungs = _ladder(net, batch)
    turn = torch.arange(len(model.orders), device=device)
    pairs = list(zip(net.pooling, net.unpooling, rungs, rungs[1:], strict=False))
    fine = [_random(pooling.proj, rung.stage, device) for pooling, _, rung, _ in pairs]
    coarse = [_random(back.proj, below.stage, device) for _, back, _, below in pairs]

    def step() -> None:
        for (pooling, back, rung, _), x, y in zip(pairs, fine, coarse, strict=True):
            pooling(x, rung.stage, turn)[0].sum().backward()
            back(y, x, rung.cluster)[0].sum().backward()

    return step


def _random(layer: nn.Linear, stage: Stage, device: str) -> Tensor:
    return torch.randn(len(stage), layer.in_features, device=device, requires_grad=True)


def _places() -> Step:
    generator = torch.Generator().manual_seed(0)
    grid = torch.randint(2048, (POINTS, 3), generator=generator)
    batch = torch.zeros(POINTS, dtype=torch.long)
    return lambda: ranks(encode(grid, batch, FULL.orders)[0])


def _loading(frame: Frame) -> Step:
    """From the memory that holds the files."""

    def step() -> None:
        generator = torch.Generator().manual_seed(0)
        for _ in range(FRAMES):
            points = read(frame)
            points = points._replace(coord=augment(points.coord, AugmentConfig(), generator))
            collate([thin(points, GRID, generator)], "train")

    return step
