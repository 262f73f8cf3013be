"""Training and evaluation through the engine, on made-up data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attention import AttentionFactory
from benchmarks.config import choices
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build, execute
from benchmarks.store import RunEnded, Store
from domains.common.corruption_presets import PRESETS
from domains.contract import DataUnavailable
from domains.segmentation.batch import EvaluationPicture
from domains.segmentation.data import SegmentationData
from domains.segmentation.domain import DOMAIN, conditions
from domains.segmentation.metrics import scores_of
from domains.segmentation.module import SegmentationModule

from .networks import masks

SMALL = {
    "model.layers": 2,
    "model.width": 24,
    "model.heads": 3,
    "model.feedforward": 32,
    "model.decoder_layers": 1,
    "recipe.steps_per_epoch": 2,
    "recipe.max_epochs": 2,
    "dataset.corrupted": "elliptical19",
}


def planned(variant: str = "standard", **overrides: Any) -> Planned:
    keys = {**SMALL, "dataset": "default", "seed": 0, "synthetic": "true", **overrides}
    arguments = [f"{key}={str(value).lower()}" for key, value in keys.items()]
    (found,) = expand(parse(["domain=segmentation", f"attention={variant}", *arguments]))
    return found


def built(**overrides: Any) -> tuple[SegmentationData, SegmentationModule]:
    cfg = planned(**overrides).config
    phase = DOMAIN.next_phase(cfg, [])
    assert phase is not None
    data, module = build(DOMAIN, cfg, phase)
    assert isinstance(data, SegmentationData)
    assert isinstance(module, SegmentationModule)
    return data, module


def go(root: Path, plan: Planned, stop_before: int | None = None) -> dict[str, Any]:
    """Train; the result as it was stored. May be asked to stop before a batch."""
    run = Store(root).prepare(plan.key, plan.config.to_dict())
    seen = iter(range(10**9))

    def should_stop() -> str | None:
        number = next(seen)
        return "interrupted" if stop_before is not None and number >= stop_before else None

    execute(run, plan.config.to_dict(), lambda event: None, should_stop)
    found: dict[str, Any] = json.loads((run.path / "result.json").read_text())
    return found


def test_a_result_has_every_metric_and_pictures_to_look_at(tmp_path: Path) -> None:
    plan = planned("quest")
    result = go(tmp_path, plan)
    names = [metric.name for metric in DOMAIN.metrics(plan.config)]
    assert list(result["metrics"]) == names
    assert names[0] == "test/miou"
    assert "test/miou_elliptical19" in names
    assert len(names) == 5 + 19
    assert all(0.0 <= value <= 100.0 for value in result["metrics"].values())
    assert result["model"] == "segmenter_2x24_scratch"
    assert result["selected"]["rule"] == "last epoch"
    assert result["parameters"]["parts"].keys() == {"encoder", "decoder"}
    assert list(tmp_path.rglob("examples/0_prediction.png"))


def test_without_corruptions_there_are_none_in_the_result(tmp_path: Path) -> None:
    result = go(tmp_path, planned(**{"dataset.corrupted": "none", "recipe.max_epochs": 1}))
    assert list(result["metrics"]) == [
        "test/miou",
        "test/macc",
        "test/aacc",
        "test/miou_majority",
    ]


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    plan = planned(**{"dataset.corrupted": "none", "model.decoder_dropout": 0.5})
    whole = go(tmp_path / "whole", plan)
    with pytest.raises(RunEnded, match="interrupted"):
        go(tmp_path / "parts", plan, stop_before=3)
    parts = go(tmp_path / "parts", plan)
    assert parts["metrics"] == whole["metrics"]
    first, second = (
        torch.load(next((tmp_path / folder).rglob("main.pt"))) for folder in ("whole", "parts")
    )
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_one_batch_can_be_learnt() -> None:
    data, module = built(**{"model.drop_path": 0.0, "model.decoder_dropout": 0.0})
    batch = next(iter(data.train_dataloader()))
    optimizer = torch.optim.AdamW(module.net.parameters(), lr=3e-3)
    first = module.loss(batch).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss = module.loss(batch)
        torch.autograd.backward(loss)
        optimizer.step()
    assert loss.item() < 0.4 * first


@pytest.mark.parametrize(
    ("protocol", "stride", "scales", "mirrored"),
    [("slide", 512, 1, False), ("slide_overlap", 480, 1, False), ("multiscale", 480, 6, True)],
)
def test_a_protocol_is_a_stride_scales_and_mirror_images(
    protocol: str, stride: int, scales: int, mirrored: bool
) -> None:
    cfg = planned(protocol=protocol, synthetic="false").config
    sizes = {"train": 4, "val": 2, "classes": 3, "crop": 512}
    module = DOMAIN.build_module(cfg, AttentionFactory("standard"), sizes)
    assert isinstance(module, SegmentationModule)
    assert (module.window, module.stride, module.mirrored) == (512, stride, mirrored)
    note = DOMAIN.metrics(cfg)[0].note
    assert note is not None
    assert note.startswith(f"window 512, stride {stride}")
    data, _ = built(protocol=protocol)
    assert len(data.test[0].images) == scales
    assert len(data.val[0].images) == 1


def test_the_clean_score_is_that_of_the_clean_pictures_alone() -> None:
    """Corrupted ones are counted under their own condition."""
    data, module = built()
    module.eval()
    counts = torch.zeros(150, 150, dtype=torch.int64)
    with torch.no_grad():
        for number, picture in enumerate(data.test):
            module.test_step(picture, number)
            if picture.corruption == "clean":
                found, mask = module.predict(picture, stride=32, mirrored=False), picture.masks[0]
                real = mask != 255
                counts.index_put_((mask[real], found[real]), torch.tensor(1), accumulate=True)
    assert module.test_counts.scores()["clean", 0] == scores_of(counts)
    assert len(module.test_counts.scores()) == 1 + 19


@pytest.mark.parametrize("preset", PRESETS)
def test_conditions_are_those_of_the_preset(preset: str) -> None:
    expected = {"kamann16": 12 * 5 + 4 * 3, "fan19": 19 * 3, "elliptical19": 19}
    assert len(conditions(preset)) == expected[preset]
    assert conditions("none") == []


def test_a_prediction_has_the_original_size() -> None:
    _, module = built()
    picture = EvaluationPicture([torch.randn(1, 3, 32, 45)], masks(1, 77, 101), "odd", "test")
    assert module.predict(picture, stride=32, mirrored=False).shape == (77, 101)


def test_weights_can_be_named_on_the_command_line() -> None:
    path = "weights/deit_tiny_%attention%.pth"
    assert planned(**{"model.init": path}).config.model.init == path


def with_weights(path: str, variant: str = "standard") -> Any:
    cfg = planned(variant).config
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, init=path))


def test_weights_that_are_not_there_are_said_before_a_run() -> None:
    with pytest.raises(DataUnavailable, match=r"nowhere/deit_standard\.pth"):
        DOMAIN.require_data(with_weights("nowhere/deit_%attention%.pth"))


def test_the_variant_chooses_its_weights(tmp_path: Path) -> None:
    _, module = built()
    for variant, fill in (("standard", 1.0), ("quest", 2.0)):
        weights = module.net.encoder.state_dict()
        weights["norm.bias"] = torch.full((24,), fill)
        torch.save({"model": weights}, tmp_path / f"{variant}.pth")
    for variant, fill in (("standard", 1.0), ("quest", 2.0)):
        cfg = with_weights(f"{tmp_path}/%attention%.pth", variant)
        sizes = {"train": 4, "val": 2, "classes": 3, "crop": 32}
        loaded: Any = DOMAIN.build_module(cfg, AttentionFactory(variant), sizes)
        assert loaded.net.encoder.norm.bias.unique().tolist() == [fill]
        assert cfg.model.name == "segmenter_2x24"


@pytest.mark.parametrize("recipe", choices("recipe", "segmentation"))
def test_a_recipe_has_the_model_that_its_name_says(recipe: str) -> None:
    (plan,) = expand(
        parse(["domain=segmentation", "seed=0", "attention=quest", f"recipe={recipe}"])
    )
    cfg = plan.config
    assert cfg.recipe.name == recipe
    expected = "segmenter_4x96" if recipe == "narrow" else recipe
    assert cfg.model.name == f"{expected}_scratch"
    if recipe != "narrow":
        assert cfg.recipe.max_epochs * cfg.recipe.steps_per_epoch == 160_000
        assert (cfg.recipe.batch_size, cfg.recipe.optimizer.lr) == (8, 1e-3)
