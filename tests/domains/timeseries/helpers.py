"""Small stand-ins for the engine: a configuration and a Lightning fit of one phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from attention import AttentionFactory
from domains.contract import OptimizerConfig, Phase, RecipeConfig, ScheduleConfig
from domains.timeseries.config import DatasetConfig, ModelConfig
from domains.timeseries.domain import DOMAIN

CONF = Path(__file__).parents[3] / "conf"
PAPER_SETS = (
    "EthanolConcentration",
    "FaceDetection",
    "Handwriting",
    "Heartbeat",
    "JapaneseVowels",
    "PEMS-SF",
    "SelfRegulationSCP1",
    "SelfRegulationSCP2",
    "SpokenArabicDigits",
    "UWaveGestureLibrary",
)


def dataset(name: str) -> DatasetConfig:
    """A dataset as its YAML describes it."""
    text = (CONF / "dataset" / "timeseries" / f"{name}.yaml").read_text()
    return DatasetConfig(**yaml.safe_load(text))


def recipe(**options: Any) -> RecipeConfig:
    """The recipe `tslib` as its YAML describes it, with changes."""
    fields = yaml.safe_load((CONF / "recipe" / "timeseries" / "tslib.yaml").read_text())
    fields["optimizer"] = OptimizerConfig(**fields["optimizer"])
    fields["schedule"] = ScheduleConfig(**fields["schedule"])
    return RecipeConfig(**{**fields, **options})


@dataclass
class Config:
    """What the domain reads of the engine's configuration."""

    dataset: DatasetConfig = field(default_factory=lambda: dataset("JapaneseVowels"))
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: RecipeConfig = field(default_factory=recipe)
    protocol: str = "holdout"
    seed: int = 0
    budget: Any = field(default_factory=lambda: SimpleNamespace(max_epochs=None))


def small_model(**options: Any) -> ModelConfig:
    return ModelConfig(**{"layers": 2, "width": 16, "feedforward": 32, "heads": 4, **options})


def module_of(cfg: Config, sizes: Any, variant: str = "standard", seed: int = 0) -> Any:
    """The domain's module with weights drawn under a seed."""
    torch.manual_seed(seed)
    return DOMAIN.build_module(cfg, AttentionFactory(variant), sizes)


class History(Callback):
    """Keeps what was logged after every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def fit(module: Any, data: Any, epochs: int, *callbacks: Callback) -> lightning.Trainer:
    """Train as the engine would, without files."""
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        gradient_clip_val=module.recipe.gradient_clip,
        callbacks=list(callbacks),
    )
    trainer.fit(module, datamodule=data)
    return trainer


MAIN = Phase("main", 1)
