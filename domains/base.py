"""What every domain implements, and the LightningModule they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn

from attention import AttentionFactory
from attention.tags import tag_of
from domains.common.schedules import schedule_factor
from domains.contract import (
    OPTIMIZERS,
    DataInfo,
    DataSource,
    DomainSpec,
    Metric,
    OptimizerConfig,
    Phase,
    PhaseResult,
    RecipeConfig,
)


class Domain(ABC):
    """A task family: data, models, protocols.

    `cfg` is the resolved configuration of one run (:class:`benchmarks.config.RunConfig` by
    duck typing): `cfg.dataset`, `cfg.model` and `cfg.recipe` are instances of the dataclasses that
    `spec.schema` names; `cfg.protocol`, `cfg.budget`, `cfg.seed` are the engine's.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    spec: ClassVar[DomainSpec]

    @abstractmethod
    def metrics(self, cfg: Any) -> Sequence[Metric]:
        """All metrics of a result; the first is the primary one."""

    @abstractmethod
    def require_data(self, cfg: Any) -> DataSource:
        """Find the dataset, in well under a second and without reading it whole.

        Raises:
            DataUnavailable: it is not; the message says which file to put where.
        """

    @abstractmethod
    def build_data(self, cfg: Any, phase: Phase) -> BenchmarkData:
        """Data of a phase: real, sample or regenerated."""

    @abstractmethod
    def tiny(self, cfg: Any, phase: Phase) -> BenchmarkData:
        """Made-up data with true shapes and types, for smoke runs: seconds on a CPU."""

    @abstractmethod
    def known_sizes(self, cfg: Any) -> Mapping[str, int] | None:
        """`DataInfo.sizes` from the configuration alone, None if only the files can tell."""

    @abstractmethod
    def build_module(
        self, cfg: Any, attention: AttentionFactory, sizes: Mapping[str, int]
    ) -> BenchmarkModule:
        """The model with its loss and metrics. Draws weights from torch's global generator."""

    @abstractmethod
    def next_phase(self, cfg: Any, done: Sequence[PhaseResult]) -> Phase | None:
        """The phase that follows the finished ones, None after the last."""

    @abstractmethod
    def summarize(self, cfg: Any, done: Sequence[PhaseResult]) -> Mapping[str, float]:
        """Metrics of the run from the results of its phases; includes the primary metric."""


class BenchmarkData(L.LightningDataModule):
    """A data module that knows where its data came from.

    Loaders must give the same batches for the same (`cfg.seed`, epoch), whatever the variant, the
    number of workers, and whether the run was interrupted. Samplers that have `set_epoch` are
    told the epoch by Lightning, but in a resumed fit only after their first batches were read:
    a training sampler must be made with `first_epoch`.

    Attributes:
        info: filled by `setup`.
        first_epoch: epoch that a training loader made now is read in first; set by the engine.
    """

    info: DataInfo
    first_epoch: int = 0


class BenchmarkModule(L.LightningModule):
    """A network with a recipe. Domains add `training_step`, `validation_step` and `test_step`.

    Metrics are logged as torchmetrics objects or once an epoch as plain floats, never as
    per-batch means.

    Args:
        net: the network; compile this, not the module.
        recipe: optimizer, schedule and clipping.
    """

    def __init__(self, net: nn.Module, recipe: RecipeConfig) -> None:
        super().__init__()
        self.net = net
        self.recipe = recipe

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """Training loss of one batch, a scalar."""

    def parts(self) -> Mapping[str, nn.Module]:
        """Named parts of the network whose parameters `inspect` counts; disjoint."""
        return dict(self.net.named_children())

    def configure_optimizers(self) -> Any:
        """Optimizer and per-step or per-epoch schedule of the recipe.

        Learned scales of the attention (tag `scale`) take no weight decay.
        """
        optimizer = build_optimizer(self.net, self.recipe.optimizer)
        schedule = self.recipe.schedule
        total = self.schedule_length()
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda unit: schedule_factor(schedule, unit, total)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": schedule.interval},
        }

    def schedule_length(self) -> int:
        """Units of the schedule's interval in the whole fit."""
        if self.recipe.schedule.interval == "epoch":
            return int(self.trainer.max_epochs or 0)
        return int(self.trainer.estimated_stepping_batches)


def build_optimizer(net: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """An optimizer over `net` by the recipe, learned attention scales without weight decay.

    Raises:
        ValueError: unknown optimizer, or no parameter to train.
    """
    tags = tag_of(net)
    decayed: list[Tensor] = []
    scales: list[Tensor] = []
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            (scales if tags.get(name) == "scale" else decayed).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": config.weight_decay}]
    if scales:
        groups.append({"params": scales, "weight_decay": 0.0})
    adam: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    # One kernel for all parameters: on a CPU a fifth of the time of a step of small tensors. On a
    # GPU, where None leaves the choice to PyTorch, it would take clipping from mixed precision.
    on_cpu = all(parameter.device.type == "cpu" for parameter in [*decayed, *scales])
    fused = True if on_cpu else None
    match config.name:
        case "adam":
            return torch.optim.Adam(groups, **adam, fused=fused)
        case "adamw":
            return torch.optim.AdamW(groups, **adam, fused=fused)
        case "radam":
            # Not PyTorch's choice on a CPU, where it halves the time of a step of small tensors.
            return torch.optim.RAdam(groups, **adam, foreach=True)
        case "sgd":
            return torch.optim.SGD(
                groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov
            )
    raise ValueError(
        f"recipe.optimizer.name={config.name!r} is unknown; allowed: {', '.join(OPTIMIZERS)}"
    )


def parameter_counts(module: BenchmarkModule) -> dict[str, Any]:
    """Parameters of a module: total, trainable, inside attention layers, and by part."""
    attention = tag_of(module.net)
    sizes = {name: p.numel() for name, p in module.net.named_parameters()}
    return {
        "total": sum(sizes.values()),
        "trainable": sum(p.numel() for p in module.net.parameters() if p.requires_grad),
        "attention": sum(size for name, size in sizes.items() if name in attention),
        "parts": {
            name: sum(p.numel() for p in part.parameters()) for name, part in module.parts().items()
        },
    }
