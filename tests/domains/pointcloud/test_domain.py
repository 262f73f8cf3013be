"""The contract, the configuration, and pictures of what was predicted."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attention import AttentionFactory
from domains.contract import Phase, PhaseResult
from domains.pointcloud.classes import NAMES
from domains.pointcloud.config import (
    AugmentConfig,
    DatasetConfig,
    ModelConfig,
    OneCycleConfig,
    PointCloudRecipe,
)
from domains.pointcloud.domain import DOMAIN
from domains.pointcloud.pictures import BACKGROUND, COLOURS, PIXELS, from_above

from .clouds import small_config


def run_of(protocol: str = "single", limit: int | None = None) -> Any:
    return SimpleNamespace(
        dataset=DatasetConfig(),
        model=small_config(),
        recipe=PointCloudRecipe("narrow", 3, 2, grid_size=0.5),
        protocol=protocol,
        budget=SimpleNamespace(max_epochs=limit),
        seed=0,
    )


def result_of(**metrics: float) -> PhaseResult:
    history = ({"val/miou": 10.0, "val/loss": 2.0}, {"val/miou": 30.0, "val/loss": 1.0})
    return PhaseResult("main", 2, 16, 1, 16, 30.0, metrics, history, 1.0, 1.0)


def test_selection_is_on_the_validation_split_and_said_so():
    phase = DOMAIN.next_phase(run_of(), [])
    assert phase.max_epochs == 3
    assert phase.selection.describe().startswith("val/miou max")
    assert DOMAIN.next_phase(run_of(limit=1), []).max_epochs == 1
    assert DOMAIN.next_phase(run_of(), [result_of()]) is None
    assert "selected on the same frames" in DOMAIN.metrics(run_of())[0].note


@pytest.mark.parametrize("protocol", ["single", "tta"])
def test_the_protocol_is_part_of_the_first_metric(protocol):
    names = [metric.name for metric in DOMAIN.metrics(run_of(protocol))]
    assert names[0] == f"val/miou_{protocol}"
    assert len(names) == len(set(names))
    assert {f"val/iou_{name}_{protocol}" for name in NAMES} <= set(names)


def test_a_result_has_the_classes_that_occur_and_what_selected():
    done = [result_of(**{"val/miou_tta": 33.0, "val/iou_car_tta": 40.0})]
    assert DOMAIN.summarize(run_of("tta"), done) == {
        "val/miou_tta": 33.0,
        "val/iou_car_tta": 40.0,
        "val/miou_single": 30.0,
        "val/loss": 1.0,
        "train/epochs_selected": 2.0,
    }


def test_pictures_are_equal_for_all_variants_but_for_the_prediction():
    cfg = run_of()
    data = DOMAIN.tiny(cfg, Phase("main", 1))
    drawn = []
    for variant in ("standard", "quest"):
        torch.manual_seed(0)
        module = DOMAIN.build_module(cfg, AttentionFactory(variant), {}).eval()
        with torch.no_grad():
            drawn.append(DOMAIN.examples(cfg, module, data))
    for first, second in zip(*drawn, strict=True):
        assert first.name == second.name
        assert np.array_equal(first.given["truth"], second.given["truth"])
        assert first.prediction.shape == (PIXELS, PIXELS, 3)
        assert first.prediction.dtype == np.uint8


def test_a_frame_is_seen_from_above():
    """A car 20 m ahead, under a leaf, and a kerb to the right; what is far away is left out."""
    coord = torch.tensor([[0.0, 20.0, 5.0], [0.0, 20.0, 1.0], [30.0, 0.0, 0.0], [0.0, 90.0, 0.0]])
    label = torch.tensor([15, 3, 12, 9])
    picture = from_above(coord, label)
    assert picture[100, 200].tolist() == COLOURS[15].tolist()
    assert picture[200, 350].tolist() == COLOURS[12].tolist()
    colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert colours == {(BACKGROUND,) * 3, tuple(COLOURS[15]), tuple(COLOURS[12])}


def test_ignored_points_have_a_colour_of_their_own():
    assert len({tuple(colour) for colour in COLOURS.tolist()}) == len(NAMES) + 1
    picture = from_above(torch.zeros(1, 3), torch.tensor([-1]))
    assert picture[200, 200].tolist() == COLOURS[-1].tolist()


def test_epochs_have_whole_batches_alone():
    recipe = PointCloudRecipe("ptv3", 50, 12)
    assert recipe.steps_in_epoch(28130) == 2344


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (DatasetConfig, {"layout": "zip"}, "dataset.layout='zip'"),
        (ModelConfig, {"orders": ["z", "peano"]}, "model.orders='peano'"),
        (ModelConfig, {"orders": []}, "one order at least"),
        (ModelConfig, {"decoder_depths": [2, 2, 2]}, "model.decoder_depths"),
        (ModelConfig, {"encoder_heads": [3, 4, 8, 16, 32]}, "multiples of model.encoder_heads"),
        (ModelConfig, {"packing": "dense"}, "model.packing='dense'"),
        (ModelConfig, {"drop_path": 1.0}, "model.drop_path"),
        (AugmentConfig, {"scale": [1.1, 0.9]}, "recipe.augment.scale"),
        (AugmentConfig, {"mix3d": 1.5}, "recipe.augment.mix3d"),
        (OneCycleConfig, {"name": "cosine"}, "recipe.schedule.name='cosine'"),
        (OneCycleConfig, {"warmup": 10}, "recipe.schedule.share"),
        (OneCycleConfig, {"momentum": [0.9]}, "recipe.schedule.momentum"),
    ],
)
def test_what_cannot_be_is_refused(config, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**values)


def test_an_optimizer_without_the_beta_that_the_schedule_moves_is_refused():
    from domains.contract import OptimizerConfig

    with pytest.raises(ValueError, match=r"recipe\.optimizer\.name=sgd"):
        PointCloudRecipe("ptv3", 50, 12, optimizer=OptimizerConfig(name="sgd"))
