"""Loaders: what a run reads, and that nothing but seed, epoch and frame decides it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from domains.common.samplers import NumberedBatches, Request, ShuffledBatches
from domains.contract import OptimizerConfig
from domains.pointcloud import data as data_module
from domains.pointcloud.batch import AugmentedScene, Batch
from domains.pointcloud.config import (
    AugmentConfig,
    DatasetConfig,
    PointCloudRecipe,
)
from domains.pointcloud.data import PointCloudData, build, known_sizes, tiny
from domains.pointcloud.lidar import write_frame
from domains.pointcloud.tiny import FRAMES

from .test_sources import described

ROOT = Path(__file__).parents[3]


def recipe(**options: Any) -> PointCloudRecipe:
    made = {"name": "made", "max_epochs": 2, "batch_size": 2, "evaluation_batch": 2}
    return PointCloudRecipe(**{**made, "optimizer": OptimizerConfig(), **options})


@dataclass
class Config:
    """What the data reads of the engine's configuration."""

    dataset: DatasetConfig = field(
        default_factory=lambda: DatasetConfig(
            name="made", layout="folder", folder="made", train=5, val=3
        )
    )
    recipe: PointCloudRecipe = field(default_factory=recipe)
    protocol: str = "single"
    seed: int = 0


@pytest.fixture
def made(tmp_path, monkeypatch) -> Config:
    """Eight made-up frames of 640 points in DATA_DIR, five of them for training."""
    import numpy as np

    from domains.pointcloud.lidar import random_scene, scan

    for number in range(8):
        rng = np.random.default_rng(number)
        write_frame(tmp_path / "data/made", f"{number}", *scan(random_scene(rng), 20, rng))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    return Config()


def content(batches: Any) -> list[Any]:
    return [
        tuple(value.tolist() if isinstance(value, torch.Tensor) else value
              for value in vars(batch).values())
        for batch in batches
    ]  # fmt: skip


def epoch(data: PointCloudData, number: int) -> list[Batch]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)
    return list(loader)


def test_what_is_told_of_the_data(made):
    info = build(made).info
    assert info.kind == "sample"
    assert info.version == "1"
    assert info.sizes == known_sizes(made.dataset) == {"classes": 16, "train": 5, "val": 3}
    assert info.source == "DATA_DIR: made"
    assert info.fingerprint.startswith("sha256:")


def test_batches_that_are_not_full_are_left_out_of_training(made):
    data = build(made)
    loader = data.train_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader) == 2 == made.recipe.steps_in_epoch(5)
    assert all(batch.split == "train" for batch in batches)


def test_published_steps_of_an_epoch():
    order = NumberedBatches(ShuffledBatches(28_130, 12, 0, drop_last=True))
    assert len(order) == 2344 == sum(len(request.indices) == 12 for request in order)


def test_every_frame_is_evaluated_once(made):
    data = build(made)
    for loader in (data.val_dataloader(), data.test_dataloader()):
        batches = list(loader)
        assert [len(batch.offset) for batch in batches] == [2, 1]
        assert sum(len(batch.full_label) for batch in batches) == 3 * 640
        assert {batch.split for batch in batches} == {"val"}


def test_frames_come_in_another_order_every_epoch_and_seed(made):
    data = build(made)
    requests = data.train_dataloader().sampler
    orders = []
    for number in range(4):
        requests.set_epoch(number)
        orders.append([request.indices.tolist() for request in requests])
    assert len({str(order) for order in orders}) > 1
    made.seed = 1
    other = build(made).train_dataloader().sampler
    assert [r.indices.tolist() for r in other] != orders[0]


def test_the_same_seed_and_epoch_give_the_same_batches(made):
    first, again = content(epoch(build(made), 3)), content(epoch(build(made), 3))
    assert first == again
    assert content(epoch(build(made), 4)) != first
    made.seed = 1
    assert content(epoch(build(made), 3)) != first


def test_a_resumed_run_reads_on(made):
    data = build(made)
    expected = content(epoch(data, 2))
    data.first_epoch = 2
    assert content(data.train_dataloader()) == expected


def test_loader_processes_change_nothing(made):
    """Nor does what the global generators say."""
    alone = build(made)
    made.recipe = recipe(workers=2)
    helped = build(made)
    torch.manual_seed(5)
    train, val = content(epoch(helped, 1)), content(helped.val_dataloader())
    torch.manual_seed(6)
    assert train == content(epoch(alone, 1))
    assert val == content(alone.val_dataloader())


def test_loading_takes_nothing_from_the_global_generator(made):
    data = build(made)
    before = torch.get_rng_state()
    epoch(data, 0)
    list(data.val_dataloader())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_frame_is_augmented_in_its_own_way(made):
    """What a frame becomes depends on seed, epoch and frame, not on its place in a batch."""
    made.recipe = recipe(augment=AugmentConfig(mix3d=0.0))
    scenes = build(made).train_dataloader().dataset
    both = scenes[Request(7, 0, torch.tensor([3, 1]))]
    alone = scenes[Request(7, 1, torch.tensor([1]))]
    assert torch.equal(both.coord[both.batch == 1], alone.coord)
    assert torch.equal(both.grid[both.batch == 1], alone.grid)
    later = scenes[Request(8, 1, torch.tensor([1]))]
    assert later.coord.shape != alone.coord.shape or not torch.equal(later.coord, alone.coord)


def test_mixing_is_drawn_for_every_batch(made):
    scenes = build(made).train_dataloader().dataset
    pair = torch.tensor([0, 1])
    mixed = sum(len(scenes[Request(0, number, pair)].offset) == 1 for number in range(60))
    assert mixed == pytest.approx(0.8 * 60, abs=10)
    made.recipe = recipe(augment=AugmentConfig(mix3d=0.0))
    never = build(made).train_dataloader().dataset
    assert all(len(never[Request(0, number, pair)].offset) == 2 for number in range(10))


def test_evaluation_sees_the_frames_as_they_are(made):
    """Not augmented, and the same points in every epoch and batch size."""
    data = build(made)
    (first, _) = data.val_dataloader()
    whole = torch.from_numpy(data.frames["val"][0].read().coord)
    kept = first.coord[first.batch == 0]
    assert {tuple(p) for p in kept.tolist()} <= {tuple(p) for p in whole.tolist()}
    made.recipe = recipe(evaluation_batch=3)
    (together,) = build(made).val_dataloader()
    assert torch.equal(together.coord[together.batch == 0], kept)


def test_protocol_tta_tests_in_all_views(made):
    made.protocol = "tta"
    data = build(made)
    scenes = list(data.test_dataloader())
    assert [type(scene) for scene in scenes] == [AugmentedScene] * 3
    assert all(len(scene.full_label) == 640 for scene in scenes)
    again = list(data.test_dataloader())
    for scene, other in zip(scenes, again, strict=True):
        for part, same in zip(scene.parts, other.parts, strict=True):
            assert torch.equal(part.feat, same.feat)
    assert all(isinstance(batch, Batch) for batch in data.val_dataloader())


def test_a_batch_larger_than_the_training_split_is_refused(made):
    made.recipe = recipe(batch_size=6)
    with pytest.raises(ValueError, match=r"recipe\.batch_size=6 must be at most dataset\.train=5"):
        build(made)


def test_made_up_data_has_true_form():
    cfg = Config(dataset=described("nuscenes"), recipe=recipe(batch_size=12, workers=8))
    data = tiny(cfg)
    assert data.info.kind == "synthetic"
    assert data.info.sizes == {"classes": 16, **FRAMES}
    batches = list(data.train_dataloader())
    assert len(batches) == FRAMES["train"] // 2
    labels = torch.cat([batch.label for batch in batches]).unique().tolist()
    assert set(labels) <= set(range(-1, 16))
    assert len(labels) > 8
    assert data.train_dataloader().num_workers == 0


class Usage(NamedTuple):
    free: int


def test_little_shared_memory_is_said(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(data_module, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(data_module.shutil, "disk_usage", lambda path: Usage(64 * 10**6))
    with caplog.at_level(logging.WARNING):
        data_module.warn_of_little_shared_memory(0, 12)
        assert not caplog.text
        data_module.warn_of_little_shared_memory(8, 12)
    assert "has 64 MB free" in caplog.text
    assert "recipe.workers=0" in caplog.text


def test_sample_frames_in_batches(data_dir):
    cfg = Config(dataset=described("nuscenes_folder"), recipe=recipe(batch_size=4))
    data = build(cfg)
    batch = data.train_dataloader().dataset[Request(0, 0, torch.tensor([0, 5]))]
    assert 40_000 < len(batch.coord) < 60_000
    assert int(batch.grid.max()) < 2**14
    whole = next(iter(data.val_dataloader()))
    assert len(whole.full_label) == len(whole.inverse) == 69_440
    assert (whole.label[whole.inverse] == whole.full_label).float().mean() > 0.97


def test_the_published_recipe_is_read(made):
    values = yaml.safe_load((ROOT / "conf/recipe/pointcloud/ptv3.yaml").read_text())["recipe"]
    assert values["augment"] == vars(AugmentConfig())
    assert (values["batch_size"], values["grid_size"]) == (12, 0.05)
