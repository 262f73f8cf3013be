"""Loaders: augmented and thinned frames for training, whole ones for evaluation.

Everything random in a batch is a function of the run's seed, the epoch and the frame, so that it is
the same in whichever process the batch is made, and for all variants.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from domains.base import BenchmarkData
from domains.common.samplers import (
    NumberedBatches,
    Remaining,
    Request,
    SequentialBatches,
    ShuffledBatches,
    made_up_batch,
)
from domains.common.seeds import derive
from domains.contract import DataInfo
from domains.pointcloud.batch import AugmentedScene, Batch
from domains.pointcloud.config import CLASSES, DatasetConfig, PointCloudRecipe
from domains.pointcloud.frames import Frame
from domains.pointcloud.scenes import augmented, collate, read, thin
from domains.pointcloud.sources import FoundSet, load
from domains.pointcloud.tiny import tiny_set
from domains.pointcloud.transforms import VIEWS, augment

log = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"
WAITING = 2
"""Batches that a loader process holds ready."""

FRAME_BYTES = 6_000_000
"""Of a whole frame in a batch, roughly."""


TINY_STRIDE = 5
"""One view in so many is tested on made-up data: one as it is and one mirrored."""

Views = Sequence[tuple[float, bool]]


class TrainingScenes(Dataset[Batch]):
    """Augmented, thinned and mixed frames for a :class:`Request`.

    Args:
        frames: of the training split.
        recipe: says how.
        seed: of the run.
    """

    def __init__(self, frames: Sequence[Frame], recipe: PointCloudRecipe, seed: int) -> None:
        self.frames = frames
        self.recipe = recipe
        self.seed = seed

    def __getitem__(self, request: Request) -> Batch:
        scenes = []
        for number in request.indices.tolist():
            points = read(self.frames[number])
            generator = _generator(self.seed, "augment", request.epoch, number)
            coord = augment(points.coord, self.recipe.augment, generator)
            scenes.append(thin(points._replace(coord=coord), self.recipe.grid_size, generator))
        chance = torch.rand(1, generator=_generator(self.seed, "mix", *request[:2])).item()
        return collate(scenes, "train", mixed=chance < self.recipe.augment.mix3d)


class WholeScenes(Dataset[Batch]):
    """Thinned frames with the way back to all points, for a :class:`Request`.

    The points that are kept depend on the seed and the frame alone: every epoch sees the same.
    """

    def __init__(self, frames: Sequence[Frame], grid_size: float, seed: int) -> None:
        self.frames = frames
        self.grid_size = grid_size
        self.seed = seed

    def __getitem__(self, request: Request) -> Batch:
        scenes = [
            thin(read(self.frames[number]), self.grid_size, _generator(self.seed, "thin", number))
            for number in request.indices.tolist()
        ]
        return collate(scenes, "val")


class ViewedScenes(Dataset[AugmentedScene]):
    """One frame an item, in all views."""

    def __init__(self, frames: Sequence[Frame], grid_size: float, seed: int, views: Views) -> None:
        self.frames = frames
        self.grid_size = grid_size
        self.seed = seed
        self.views = views

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int) -> AugmentedScene:
        generator = _generator(self.seed, "fine", number)
        return augmented(read(self.frames[number]), self.grid_size, generator, self.views)


def _generator(seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *purpose))


class PointCloudData(BenchmarkData):
    """Trains on `train`, selects and tests on `val`, as published.

    Args:
        found: frames of both splits.
        info: where they come from.
        recipe: batches, grid and augmentation.
        seed: of the run.
        views: of a test frame under protocol `tta`; empty under `single`.
    """

    def __init__(
        self, found: FoundSet, info: DataInfo, recipe: PointCloudRecipe, *, seed: int, views: Views
    ) -> None:
        super().__init__()
        self.info = info
        self.recipe = recipe
        self.seed = seed
        self.views = views
        self.frames = found.splits

    def train_dataloader(self) -> DataLoader[Batch]:
        frames, recipe = self.frames["train"], self.recipe
        warn_of_little_shared_memory(recipe.workers, recipe.batch_size)
        order = ShuffledBatches(
            len(frames), recipe.batch_size, self.seed, self.first_epoch, drop_last=True
        )
        return _loader(
            TrainingScenes(frames, recipe, self.seed),
            Remaining(NumberedBatches(order), self.first_epoch, self.first_batch),
            workers=recipe.workers,
        )

    def val_dataloader(self) -> DataLoader[Batch]:
        frames, recipe = self.frames["val"], self.recipe
        order = SequentialBatches(len(frames), recipe.evaluation_batch)
        scenes = WholeScenes(frames, recipe.grid_size, self.seed)
        return _loader(scenes, NumberedBatches(order), workers=recipe.workers)

    def test_dataloader(self) -> DataLoader[Any]:
        """Batches as for validation; under protocol `tta`, one :class:`AugmentedScene` an item."""
        if not self.views:
            return self.val_dataloader()
        # In this process: a frame in all views is 150 MB, which is no cargo for shared memory.
        scenes = ViewedScenes(self.frames["val"], self.recipe.grid_size, self.seed, self.views)
        return _loader(scenes, None, workers=0)


def _loader(
    scenes: Dataset[Any], order: Sampler[Request] | None, *, workers: int
) -> DataLoader[Any]:
    # Own generator: a loader draws a number at the start of each epoch, and taken from the global
    # stream it would move the draws of the model.
    return DataLoader(
        scenes,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        prefetch_factor=WAITING if workers else None,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(0),
    )


def warn_of_little_shared_memory(workers: int, batch_size: int) -> None:
    """Say so where loader processes would be killed for lack of shared memory, as in containers."""
    if not workers or not os.path.isdir(SHARED_MEMORY):
        return
    needed = workers * WAITING * batch_size * FRAME_BYTES
    if (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
        log.warning(
            "%s has %d MB free, %d loader processes may need %d MB: if they are killed (bus "
            "error), enlarge it or set recipe.workers=0",
            SHARED_MEMORY, free // 10**6, workers, needed // 10**6,
        )  # fmt: skip


def known_sizes(config: DatasetConfig) -> dict[str, int]:
    """`DataInfo.sizes` from the configuration alone."""
    return {"classes": CLASSES, "train": config.train, "val": config.val}


def build(cfg: Any) -> PointCloudData:
    """Data of the configured set.

    Raises:
        DataUnavailable, DataCorrupt: see :func:`domains.pointcloud.sources.load`.
        ValueError: there are fewer training frames than a batch has.
    """
    config, recipe = cfg.dataset, cfg.recipe
    if config.train < recipe.batch_size:
        raise ValueError(
            f"recipe.batch_size={recipe.batch_size} must be at most dataset.train={config.train}: "
            "batches that are not full are left out"
        )
    return _data(cfg, load(config), recipe, VIEWS)


def tiny(cfg: Any) -> PointCloudData:
    """Made-up frames, few a batch, loaded in this process and tested in two views."""
    few = made_up_batch(cfg.recipe.batch_size)
    recipe = dataclasses.replace(cfg.recipe, batch_size=few, evaluation_batch=1, workers=0)
    return _data(cfg, tiny_set(), recipe, VIEWS[::TINY_STRIDE])


def _data(cfg: Any, found: FoundSet, recipe: PointCloudRecipe, views: Views) -> PointCloudData:
    sizes = {split: len(frames) for split, frames in found.splits.items()}
    info = DataInfo(
        kind=found.kind,
        version=cfg.dataset.version,
        fingerprint=found.fingerprint,
        source=found.source,
        sizes={"classes": CLASSES, **sizes},
        notes=found.notes,
    )
    views = views if cfg.protocol == "tta" else ()
    return PointCloudData(found, info, recipe, seed=cfg.seed, views=views)
