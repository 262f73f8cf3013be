"""Configuration of the point-cloud domain: dataclasses without torch.

The defaults are the published configuration: Pointcept/Pointcept at d74c646,
`configs/nuscenes/semseg-pt-v3m1-0-base.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from domains.contract import (
    DomainSpec,
    Protocol,
    RecipeConfig,
    ScheduleConfig,
    refuse_unknown,
    refuse_unless,
)

Choice = tuple[str, ...]

LAYOUTS: Choice = ("nuscenes", "folder")
ORDERS: Choice = ("z", "z_trans", "hilbert", "hilbert_trans")
PACKINGS: Choice = ("patches", "packed")

CLASSES = 16
"""Of the merged lidarseg challenge labels."""

POINT_FEATURES = 4
"""x, y, z in metres and the intensity from 0 to 1."""


@dataclass
class DatasetConfig:
    """Key frames of LiDAR sweeps with a label a point.

    Attributes:
        name: key of the set.
        version: raised when preparation changes what a model sees.
        layout: `nuscenes` has the tables of the devkit, or Pointcept's info files, beside the
            sweeps; `folder` is sweeps and labels alone, split by the order of their names.
        folder: name of the folder that is looked for.
        train: key frames in the training split.
        val: key frames in the validation split; with `layout=folder` the last ones.
        source: where the numbers and the files come from.
        licence: of the data.
    """

    name: str = "nuscenes"
    version: str = "1"
    layout: str = "nuscenes"
    folder: str = "nuscenes"
    train: int = 28130
    val: int = 6019
    source: str = field(default="", metadata={"identity": False})
    licence: str = field(default="not stated", metadata={"identity": False})

    def __post_init__(self) -> None:
        refuse_unknown("dataset.layout", self.layout, LAYOUTS)
        for key in ("train", "val"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"dataset.{key}", value, "at least 1")


@dataclass
class ModelConfig:
    """Size and form of Point Transformer V3. Lists go from the finest stage to the coarsest.

    Attributes:
        name: key of the model in the store and in tables of published numbers.
        encoder_depths: blocks of each stage.
        encoder_channels: width of each stage.
        encoder_heads: attention heads of each stage.
        decoder_depths: blocks of each stage on the way back; one stage fewer.
        decoder_channels: width of each of these.
        decoder_heads: attention heads of each of these.
        patch_size: points of a patch, the same for all kernels.
        mlp_ratio: hidden width of a block's MLP over its own.
        drop_path: largest rate at which a point skips a branch of a block.
        orders: along which curves points are lined up.
        shuffle_orders: whether these are permuted at random in every forward pass and pooling.
        relative_positions: whether a learned bias on the distance of two voxels is added to the
            logits.
        skip_context: whether the convolution of the first block of a decoder stage sees what comes
            from the encoder alone, not the sum with what comes from below. The published code is
            of this form, and so are its checkpoints and numbers (Pointcept/PointTransformerV3
            issues 65 and 149 call it a slip).
        packing: how patches enter the attention. `patches` keeps those of full size apart, without
            a mask; `packed` lays all patches end to end. Same numbers.
    """

    name: str = "ptv3"
    encoder_depths: list[int] = field(default_factory=lambda: [2, 2, 2, 6, 2])
    encoder_channels: list[int] = field(default_factory=lambda: [32, 64, 128, 256, 512])
    encoder_heads: list[int] = field(default_factory=lambda: [2, 4, 8, 16, 32])
    decoder_depths: list[int] = field(default_factory=lambda: [2, 2, 2, 2])
    decoder_channels: list[int] = field(default_factory=lambda: [64, 64, 128, 256])
    decoder_heads: list[int] = field(default_factory=lambda: [4, 4, 8, 16])
    patch_size: int = 1024
    mlp_ratio: int = 4
    drop_path: float = 0.3
    orders: list[str] = field(default_factory=lambda: list(ORDERS))
    shuffle_orders: bool = True
    relative_positions: bool = False
    skip_context: bool = field(default=False, metadata={"identity": "unless default"})
    packing: str = "patches"

    def __post_init__(self) -> None:
        refuse_unknown("model.packing", self.packing, PACKINGS)
        for order in self.orders:
            refuse_unknown("model.orders", order, ORDERS)
        refuse_unless(len(self.orders) >= 1, "model.orders", self.orders, "one order at least")
        stages = len(self.encoder_depths)
        refuse_unless(stages >= 2, "model.encoder_depths", self.encoder_depths, "2 stages or more")
        for part, length in (("encoder", stages), ("decoder", stages - 1)):
            widths, heads = getattr(self, f"{part}_channels"), getattr(self, f"{part}_heads")
            for key in ("depths", "channels", "heads"):
                values = getattr(self, f"{part}_{key}")
                fits = len(values) == length and all(value >= 1 for value in values)
                what = f"{length} numbers of at least 1 with {stages} stages of the encoder"
                refuse_unless(fits, f"model.{part}_{key}", values, what)
            fits = all(width % head == 0 for width, head in zip(widths, heads, strict=True))
            multiples = f"multiples of model.{part}_heads={heads}"
            refuse_unless(fits, f"model.{part}_channels", widths, multiples)
        for key in ("patch_size", "mlp_ratio"):
            value = getattr(self, key)
            refuse_unless(value >= 1, f"model.{key}", value, "at least 1")
        rate = self.drop_path
        refuse_unless(0.0 <= rate < 1.0, "model.drop_path", rate, "at least 0 and below 1")


@dataclass
class AugmentConfig:
    """What a training scene goes through before its points are thinned to the grid.

    Attributes:
        rotate: probability of a rotation about z by any angle.
        scale: smallest and largest factor on all coordinates.
        flip: probability of a reflection, drawn for x and y by themselves.
        jitter: standard deviation of the noise on each coordinate, in metres.
        jitter_clip: largest noise, in metres.
        mix3d: probability, for a batch, that consecutive scenes become one.
    """

    rotate: float = 0.5
    scale: list[float] = field(default_factory=lambda: [0.9, 1.1])
    flip: float = 0.5
    jitter: float = 0.005
    jitter_clip: float = 0.02
    mix3d: float = 0.8

    def __post_init__(self) -> None:
        key = "recipe.augment"
        for name in ("rotate", "flip", "mix3d"):
            value = getattr(self, name)
            refuse_unless(0.0 <= value <= 1.0, f"{key}.{name}", value, "from 0 to 1")
        for name in ("jitter", "jitter_clip"):
            value = getattr(self, name)
            refuse_unless(0.0 <= value < math.inf, f"{key}.{name}", value, "at least 0")
        fits = len(self.scale) == 2 and 0.0 < self.scale[0] <= self.scale[1] < math.inf
        refuse_unless(fits, f"{key}.scale", self.scale, "two factors above 0, the smaller first")


@dataclass
class OneCycleConfig(ScheduleConfig):
    """The one-cycle schedule, of which `warmup` and `final` are no part.

    The learning rate rises over `share` of the fit along a cosine from 1 / `start` of the largest
    to the largest, and falls along another to 1 / (`start` * `end`) of it. Meanwhile beta1 of the
    optimizer goes from the first of `momentum` to the second and back.

    Source: Smith and Topin 2017, arXiv 1708.07120; `torch.optim.lr_scheduler.OneCycleLR`.
    """

    name: str = "one_cycle"
    interval: str = "step"
    share: float = 0.04
    start: float = 10.0
    end: float = 100.0
    momentum: list[float] = field(default_factory=lambda: [0.95, 0.85])

    def __post_init__(self) -> None:
        key = "recipe.schedule"
        refuse_unknown(f"{key}.name", self.name, ("one_cycle",))
        refuse_unknown(f"{key}.interval", self.interval, ("step",))
        for name, unused in (("warmup", 0), ("final", 0.0)):
            value = getattr(self, name)
            what = f"{unused}: recipe.schedule.share, start and end say it in this domain"
            refuse_unless(value == unused, f"{key}.{name}", value, what)
        refuse_unless(0.0 < self.share < 1.0, f"{key}.share", self.share, "between 0 and 1")
        for name in ("start", "end"):
            value = getattr(self, name)
            refuse_unless(1.0 <= value < math.inf, f"{key}.{name}", value, "at least 1")
        fits = len(self.momentum) == 2 and all(0.0 <= beta < 1.0 for beta in self.momentum)
        refuse_unless(fits, f"{key}.momentum", self.momentum, "two numbers from 0 to below 1")

    def factor(self, unit: int, total: int) -> float:
        return self._between(unit, total, 1.0 / self.start, 1.0, 1.0 / (self.start * self.end))

    def beta1(self, unit: int, total: int) -> float:
        """First beta of the optimizer after `unit` of `total` steps."""
        slow, fast = self.momentum
        return self._between(unit, total, slow, fast, slow)

    def _between(self, unit: int, total: int, first: float, peak: float, last: float) -> float:
        top = self.share * total - 1.0
        if unit <= top:
            low, high, progress = first, peak, unit / top if top else 1.0
        else:
            low, high, progress = peak, last, min(1.0, (unit - top) / (total - 1.0 - top))
        return high + 0.5 * (low - high) * (1.0 + math.cos(math.pi * progress))


@dataclass
class PointCloudRecipe(RecipeConfig):
    """A recipe over scenes.

    Attributes:
        grid_size: edge of a voxel in metres; one point of each is kept.
        evaluation_batch: scenes a batch of the validation; changes no number.
        block_lr_ratio: learning rate of the blocks' parameters over that of the others.
        augment: see `AugmentConfig`.
        workers: loader processes; changes no number.
    """

    schedule: OneCycleConfig = field(default_factory=OneCycleConfig)
    grid_size: float = 0.05
    evaluation_batch: int = field(default=4, metadata={"identity": False})
    block_lr_ratio: float = 0.1
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    workers: int = field(default=0, metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("grid_size", "block_lr_ratio"):
            value = getattr(self, key)
            refuse_unless(0.0 < value < math.inf, f"recipe.{key}", value, "a number above 0")
        for key, least in (("evaluation_batch", 1), ("workers", 0)):
            value = getattr(self, key)
            refuse_unless(value >= least, f"recipe.{key}", value, f"at least {least}")
        name = self.optimizer.name
        cycled = "adamw: the schedule moves its beta1"
        refuse_unless(name == "adamw", "recipe.optimizer.name", name, cycled)

    def steps_in_epoch(self, train: int) -> int:
        """Whole batches of `train` scenes; what is left over is dropped."""
        return max(1, train // self.batch_size)


SPEC = DomainSpec(
    schema={"dataset": DatasetConfig, "model": ModelConfig, "recipe": PointCloudRecipe},
    protocols={
        "single": Protocol(
            "single",
            1,
            "one pass over the points that the grid keeps, their classes for all points",
            note="the epoch is selected on the validation split itself",
        ),
        "tta": Protocol(
            "tta",
            1,
            "five scales, with and without a flip, every point predicted in each; summed",
            note="the epoch is selected on the validation split itself",
        ),
    },
)
