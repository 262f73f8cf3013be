"""Batches of crops to train on, and the pictures that are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from domains.base import BenchmarkData
from domains.common.corruption_presets import PRESETS
from domains.common.corruptions import corrupt
from domains.common.files import sha256
from domains.common.samplers import Remaining, made_up_batch
from domains.common.seeds import derive
from domains.contract import DataCorrupt, DataInfo, DataKind, DataSource
from domains.segmentation import sources
from domains.segmentation.batch import CLEAN, Batch, EvaluationPicture
from domains.segmentation.config import SCALES, DatasetConfig, SegmentationRecipe
from domains.segmentation.folders import Pair
from domains.segmentation.images import Pixels, read_image, read_indices
from domains.segmentation.labels import LabelRule, Labels
from domains.segmentation.stream import EndlessCrops, Turn
from domains.segmentation.tiny import SHOWN, MadePictures
from domains.segmentation.transforms import Draws, evaluation_picture, training_crop

TINY_STEPS = 2
"""Batches of an epoch of made-up data."""

TINY_PATCHES = 2
"""Patches along a side of a crop of made-up data."""

TINY_PICTURES = {"train": 4, "val": 2}
"""Made-up pictures by split."""


class Pictures(Protocol):
    """Pictures of a split with their labels, read when they are asked for."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the pictures, unique in the split."""
        ...

    def read(self, number: int) -> tuple[Pixels, Labels]:
        """(H, W, 3) uint8 RGB and (H, W) labels."""
        ...


class Files:
    """Pictures in files.

    Args:
        pairs: of a split.
        rule: what the numbers in the masks mean.
    """

    def __init__(self, pairs: Sequence[Pair], rule: LabelRule) -> None:
        self.pairs = pairs
        self.rule = rule
        self.names = [pair.name for pair in pairs]

    def read(self, number: int) -> tuple[Pixels, Labels]:
        """As :meth:`Pictures.read`.

        Raises:
            DataCorrupt: a file is damaged, or picture and mask do not fit.
        """
        pair = self.pairs[number]
        image, indices = read_image(pair.image), read_indices(pair.mask)
        if image.shape[:2] != indices.shape:
            (height, width), (rows, columns) = image.shape[:2], indices.shape
            raise DataCorrupt(
                f"{pair.image} is {width}x{height}, its mask {pair.mask} is {columns}x{rows}"
            )
        return image, self.rule.labels(indices, pair.mask)


class Crops(Dataset[Batch]):
    """Training crops; a list of turns gives a batch.

    A crop depends on the run's seed, the pass and the picture alone: not on the number of loader
    processes, nor on what was read before.

    Args:
        pictures: of the training split.
        recipe: how they are cropped and distorted.
        crop: side of a crop.
        seed: of the run.
    """

    def __init__(
        self, pictures: Pictures, recipe: SegmentationRecipe, crop: int, seed: int
    ) -> None:
        self.pictures = pictures
        self.recipe = recipe
        self.crop = crop
        self.seed = seed

    def __getitem__(self, turns: list[Turn]) -> Batch:
        images = torch.empty(len(turns), 3, self.crop, self.crop)
        masks = torch.empty(len(turns), self.crop, self.crop, dtype=torch.int64)
        for row, (done, number) in enumerate(turns):
            generator = np.random.default_rng(derive(self.seed, "crop", done, number))
            draws = Draws.of(generator, self.recipe)
            image, labels = training_crop(
                *self.pictures.read(number), self.recipe, self.crop, draws
            )
            images[row], masks[row] = torch.from_numpy(image), torch.from_numpy(labels)
        return Batch(images, masks, "train")


@dataclass(frozen=True)
class Look:
    """One way in which a picture is scored."""

    number: int
    corruption: str = CLEAN
    severity: int = 0


class Scored(Dataset[EvaluationPicture]):
    """Pictures at their evaluation size.

    Args:
        split: `val` or `test`, as the metrics name it.
        pictures: of the split.
        recipe: how they are resized and normalised.
        looks: what is scored, in order.
        scales: factors on the frame, for each of which a picture is resized.
        corruption_seed: with the picture's name, the corruption and its severity it decides what
            is drawn.
    """

    def __init__(
        self,
        split: str,
        pictures: Pictures,
        recipe: SegmentationRecipe,
        looks: Sequence[Look],
        scales: Sequence[float],
        corruption_seed: int,
    ) -> None:
        self.split = split
        self.pictures = pictures
        self.recipe = recipe
        self.looks = looks
        self.scales = scales
        self.corruption_seed = corruption_seed

    def __len__(self) -> int:
        return len(self.looks)

    def __getitem__(self, item: int) -> EvaluationPicture:
        look = self.looks[item]
        image, labels = self.pictures.read(look.number)
        name = self.pictures.names[look.number]
        if look.corruption != CLEAN:
            seed = derive(self.corruption_seed, name, look.corruption, look.severity)
            image = corrupt(image, look.corruption, look.severity, np.random.default_rng(seed))
        pixels = [evaluation_picture(image, self.recipe, scale) for scale in self.scales]
        return EvaluationPicture(
            images=[torch.from_numpy(each)[None] for each in pixels],
            masks=torch.from_numpy(labels.astype(np.int64))[None],
            name=name,
            split=self.split,
            corruption=look.corruption,
            severity=look.severity,
        )


class SegmentationData(BenchmarkData):
    """Training reads an endless stream of crops; validation and test whole pictures.

    The test goes through the pictures of `val`: first as they are, then corrupted.

    Args:
        train: pictures that are trained on.
        val: pictures that are scored.
        info: where they come from.
        recipe: see :class:`SegmentationRecipe`.
        crop: side of a training crop.
        steps: batches of an epoch.
        seed: of the run.
        corrupted: looks at `val` with a corruption.
        scales: of the test, see :class:`Scored`.
        corruption_seed: see :class:`Scored`.
    """

    def __init__(
        self,
        train: Pictures,
        val: Pictures,
        info: DataInfo,
        *,
        recipe: SegmentationRecipe,
        crop: int,
        steps: int,
        seed: int,
        corrupted: Sequence[Look],
        scales: Sequence[float],
        corruption_seed: int,
    ) -> None:
        super().__init__()
        self.info = info
        self.recipe = recipe
        self.steps = steps
        self.seed = seed
        self.crops = Crops(train, recipe, crop, seed)
        clean = [Look(number) for number in range(len(val.names))]
        self.val = Scored("val", val, recipe, clean, [1.0], corruption_seed)
        looks = [*clean, *corrupted]
        self.test = Scored("test", val, recipe, looks, scales, corruption_seed)

    def train_dataloader(self) -> DataLoader[Batch]:
        pictures = len(self.crops.pictures.names)
        order = EndlessCrops(
            pictures, self.recipe.batch_size, self.steps, self.seed, self.first_epoch
        )
        return self._loader(self.crops, Remaining(order, self.first_epoch, self.first_batch))

    def val_dataloader(self) -> DataLoader[EvaluationPicture]:
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[EvaluationPicture]:
        """One picture an item."""
        return self._loader(self.test)

    def _loader(self, data: Any, order: Any = None) -> DataLoader[Any]:
        # Own generator: a loader draws a number at the start of each epoch, and taken from the
        # global stream it would move the dropout masks.
        generator = torch.Generator().manual_seed(0)
        workers = self.recipe.loader_workers
        return DataLoader(
            data,
            batch_size=None,
            sampler=order,
            generator=generator,
            num_workers=workers,
            persistent_workers=workers > 0,
        )


def require(cfg: Any) -> DataSource:
    """See :func:`domains.segmentation.sources.require`."""
    LabelRule.of(cfg.dataset)
    return sources.require(cfg.dataset)


def known_sizes(cfg: Any) -> dict[str, int] | None:
    """`DataInfo.sizes` from the configuration alone, None if only the files can tell."""
    config = cfg.dataset
    if config.classes is None or not config.pictures.keys() >= set(sources.SPLITS):
        return None
    pictures = {split: config.pictures[split] for split in sources.SPLITS}
    return {**pictures, "classes": config.classes, "crop": cfg.recipe.crop}


def build(cfg: Any) -> SegmentationData:
    """Data of the configured set.

    Raises:
        DataUnavailable, DataCorrupt, ValueError: see :func:`domains.segmentation.sources.obtain`.
    """
    rule = LabelRule.of(cfg.dataset)
    found = sources.obtain(cfg.dataset)
    pictures = {split: Files(found.pairs[split], rule) for split in sources.SPLITS}
    return _data(
        cfg,
        cfg.recipe,
        pictures,
        classes=rule.classes,
        kind=sources.kind(cfg.dataset),
        fingerprint=_fingerprint(found.pairs),
        source=found.source,
        crop=cfg.recipe.crop,
        steps=cfg.recipe.steps_per_epoch,
        looks=range(len(pictures["val"].names)),
    )


def tiny(cfg: Any) -> SegmentationData:
    """Made-up data: everything as configured, but small; one picture is corrupted."""
    classes = cfg.dataset.classes or SHOWN
    crop = TINY_PATCHES * cfg.model.patch
    recipe = replace(
        cfg.recipe,
        batch_size=made_up_batch(cfg.recipe.batch_size),
        long_side=4 * crop,
        short_side=crop,
        loader_workers=0,
    )
    pictures = {
        split: MadePictures(split, count, classes, side=crop)
        for split, count in TINY_PICTURES.items()
    }
    return _data(
        cfg,
        recipe,
        pictures,
        classes=classes,
        kind="synthetic",
        fingerprint=f"sha256:{hashlib.sha256(repr((classes, crop)).encode()).hexdigest()}",
        source="made-up fields and disks in the colours of their classes",
        crop=crop,
        steps=min(recipe.steps_per_epoch, TINY_STEPS),
        looks=[0],
    )


def _data(
    cfg: Any,
    recipe: SegmentationRecipe,
    pictures: Mapping[str, Pictures],
    *,
    classes: int,
    kind: DataKind,
    fingerprint: str,
    source: str,
    crop: int,
    steps: int,
    looks: Iterable[int],
) -> SegmentationData:
    config = cfg.dataset
    sizes = {split: len(pictures[split].names) for split in sources.SPLITS}
    info = DataInfo(
        kind=kind,
        version=config.version,
        fingerprint=fingerprint,
        source=source,
        sizes={**sizes, "classes": classes, "crop": crop},
        notes=_notes(config),
    )
    preset = {} if config.corrupted == "none" else PRESETS[config.corrupted]
    conditions = [(name, level) for name, levels in preset.items() for level in levels]
    return SegmentationData(
        pictures["train"],
        pictures["val"],
        info,
        recipe=recipe,
        crop=crop,
        steps=steps,
        seed=cfg.seed,
        corrupted=[Look(number, *condition) for condition in conditions for number in looks],
        scales=SCALES[cfg.protocol],
        corruption_seed=config.corruption_seed,
    )


def _notes(config: DatasetConfig) -> tuple[str, ...]:
    if not config.reduce_zero_label:
        return ()
    return ("0 in a mask means 'other' and is ignored; 1 is class 0",)


def _fingerprint(pairs: Mapping[str, Sequence[Pair]]) -> str:
    """Of the bytes of all files, with their names."""
    digest = hashlib.sha256()
    for split, found in pairs.items():
        for pair in found:
            digest.update(f"{split}/{pair.name}\n".encode())
            for path in (pair.image, pair.mask):
                digest.update(sha256(path).encode())
    return f"sha256:{digest.hexdigest()}"
