"""Small stand-ins for the engine: a configuration, a Lightning fit, a group of runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from attention import AttentionFactory
from domains.common.seeds import derive
from domains.contract import OptimizerConfig, Phase, RecipeConfig, ScheduleConfig
from domains.toy.config import DatasetConfig, ModelConfig
from domains.toy.data import ToyData, build
from domains.toy.domain import DOMAIN
from domains.toy.module import ToyModule

CONF = Path(__file__).parents[3] / "conf"


def recipe(lr: float = 0.001, weight_decay: float = 0.02, **options: Any) -> RecipeConfig:
    """The recipe `50ep` as its YAML describes it, with changes."""
    fields = yaml.safe_load((CONF / "recipe" / "toy" / "50ep.yaml").read_text())
    fields["optimizer"] |= {"lr": lr, "weight_decay": weight_decay}
    fields["optimizer"] = OptimizerConfig(**fields["optimizer"])
    fields["schedule"] = ScheduleConfig(**fields["schedule"])
    return RecipeConfig(**{**fields, **options})


@dataclass(frozen=True)
class Config:
    """What the domain reads of the engine's configuration."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: RecipeConfig = field(default_factory=recipe)
    protocol: str = "paper"
    seed: int = 0
    budget: Any = field(default_factory=lambda: SimpleNamespace(max_epochs=None))


def data_of(cfg: Config, dtype: torch.dtype) -> ToyData:
    """The data of a configuration, tokens in the given precision."""
    data = build(cfg, tiny=False)
    for split in data.splits.values():
        split.tokens = split.tokens.to(dtype)
    return data


def module_of(cfg: Config, data: ToyData, variant: str = "standard") -> ToyModule:
    """The domain's module with weights drawn from the seed of the run, as the engine does."""
    torch.manual_seed(derive(cfg.seed, "initialisation"))
    module = DOMAIN.build_module(cfg, AttentionFactory(variant), data.info.sizes)
    assert isinstance(module, ToyModule)
    return module


class History(Callback):
    """Keeps what was logged after every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        logged = {k: float(v) for k, v in trainer.callback_metrics.items()}
        logged["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        self.epochs.append(logged)


def alone(
    cfg: Config, variant: str, epochs: int, dtype: torch.dtype = torch.float32
) -> tuple[ToyModule, list[dict[str, float]], Any]:
    """A run trained by Lightning: module, history, metrics of the test."""
    data = data_of(cfg, dtype)
    module, history = module_of(cfg, data, variant).to(dtype), History()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=cfg.recipe.gradient_clip,
        logger=False,
        callbacks=[history],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    return module, history.epochs, metrics


@dataclass
class Group:
    """Runs trained together: their modules, histories and metrics, and the steps told."""

    modules: list[ToyModule]
    histories: list[list[dict[str, float]]]
    metrics: list[Any]
    steps: list[int]


def together(
    cfgs: list[Config], variant: str, epochs: int, dtype: torch.dtype = torch.float32
) -> Group:
    """Runs trained by the domain as one batched model."""
    data = data_of(cfgs[0], dtype)
    data.setup("fit")
    modules = [module_of(cfg, data, variant).to(dtype) for cfg in cfgs]
    group = Group(modules, [[] for _ in cfgs], [], [])

    def epoch_ended(steps: int, values: Any) -> None:
        group.steps.append(steps)
        for history, logged in zip(group.histories, values, strict=True):
            history.append(dict(logged))

    group.metrics = list(
        DOMAIN.train_together(cfgs, modules, data, Phase("main", epochs), epoch_ended)
    )
    return group


def small(**options: Any) -> Config:
    """A quick configuration."""
    return Config(dataset=DatasetConfig(train=200, test=100), **options)


def varied(base: Config) -> list[Config]:
    """Three runs that differ in everything in which runs of a group may differ."""
    settings = [(0, 0.001, 0.0), (1, 0.001, 0.1), (0, 0.01, 0.02)]
    return [
        replace(
            base,
            seed=seed,
            recipe=replace(
                base.recipe,
                optimizer=replace(base.recipe.optimizer, lr=lr, weight_decay=decay),
            ),
        )
        for seed, lr, decay in settings
    ]
