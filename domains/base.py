"""What every domain implements, and the LightningModule they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn

from attention import AttentionFactory, after_step
from attention.steps import adopt_weights, needs_steps
from attention.tags import tag_of
from domains.common.parts import rows_of, take_rows
from domains.contract import (
    OPTIMIZERS,
    DataInfo,
    DataSource,
    DomainSpec,
    Example,
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

    def examples(self, cfg: Any, module: BenchmarkModule, data: BenchmarkData) -> Sequence[Example]:
        """A few inputs with what the trained model makes of them, for the report; none by default.

        Args:
            cfg: the run's configuration.
            module: holds the kept weights; in eval mode and single precision, on the CPU, without
                gradients.
            data: as built for the last phase.
        """
        return ()

    def train_together(
        self,
        cfgs: Sequence[Any],
        modules: Sequence[BenchmarkModule],
        data: BenchmarkData,
        phase: Phase,
        epoch_ended: EpochEnded,
    ) -> Sequence[Mapping[str, float]]:
        """Train several runs as one batched model; offered where `spec.together` is set.

        The result is that of training each module by itself, up to rounding.

        Args:
            cfgs: configurations that differ in the seed and `spec.together.keys` alone.
            modules: freshly initialised, one a run; hold the trained weights on return.
            data: set up; the same for all.
            phase: as for a single run, without a selection.
            epoch_ended: to be called after every epoch with the optimizer steps taken so far and,
                for every run, the values that a single fit would have logged. It may raise, which
                ends the training of all.

        Returns:
            For every run, the metrics of its trained weights on the test split.
        """
        raise NotImplementedError(f"domain '{self.name}' trains one run at a time")


EpochEnded = Callable[[int, Sequence[Mapping[str, float]]], None]


class BenchmarkData(L.LightningDataModule):
    """A data module that knows where its data came from.

    Loaders must give the same batches for the same (`cfg.seed`, epoch), whatever the variant, the
    number of workers, and whether the run was interrupted. Samplers that have `set_epoch` are
    told the epoch by Lightning, but in a resumed fit only after their first batches were read:
    a training sampler must be made with `first_epoch`. One that is put into
    :class:`~domains.common.samplers.Remaining`, with `first_batch`, lets a stopped run continue
    in the middle of an epoch; without it the run continues from the last end of one.

    Attributes:
        info: filled by `setup`.
        first_epoch: epoch that a training loader made now is read in first; set by the engine.
        first_batch: how many batches of that epoch have been trained; likewise.
    """

    info: DataInfo
    first_epoch: int = 0
    first_batch: int = 0


class BenchmarkModule(L.LightningModule):
    """A network with a recipe. Domains add `training_step`, `validation_step` and `test_step`.

    Metrics are logged as torchmetrics objects or once an epoch as plain floats, never as
    per-batch means.

    Several devices share the batches of training: every one reads them whole and keeps its part.
    Where a batch has not a row for each sample in all its tensors, a domain overrides `samples`
    and `part`; where its loss is a mean over something else than samples, `terms`.

    Args:
        net: the network; compile this, not the module.
        recipe: optimizer, schedule and clipping.

    Attributes:
        devices: how many share a batch; set by the engine.
        share: of the present batch's loss that this process computes.
        is_shared: whether it computes a part; a batch of fewer samples than devices, all compute.
    """

    devices: int = 1
    share: float = 1.0
    is_shared: bool = False

    def __init__(self, net: nn.Module, recipe: RecipeConfig) -> None:
        super().__init__()
        self.net = net
        self.recipe = recipe
        # Called here for its refusals: what a model cannot do is said when it is built.
        parameter_rates(net, recipe.optimizer, **recipe.qk_options)
        # A model may draw its weights after its layers are built.
        adopt_weights(net)
        self._tells_of_steps = needs_steps(net)

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """Training loss of one batch, a scalar."""

    def samples(self, batch: Any) -> int:
        """How many samples a batch has, between which it can be cut."""
        return rows_of(batch)

    def part(self, batch: Any, begin: int, end: int) -> Any:
        """Samples `begin` to `end` - 1 of a batch."""
        return take_rows(batch, begin, end)

    def terms(self, batch: Any) -> float:
        """How many terms the loss of a batch is the mean of, or their weights in all."""
        return self.samples(batch)

    def own_part(self, batch: Any, rank: int) -> Any:
        """What one of `devices` processes trains on; sets `share` and `is_shared`."""
        count = self.samples(batch)
        self.is_shared, self.share = count >= self.devices, 1.0 / self.devices
        if not self.is_shared:
            return batch
        own = self.part(batch, count * rank // self.devices, count * (rank + 1) // self.devices)
        if (whole := self.terms(batch)) > 0:
            self.share = self.terms(own) / whole
        return own

    @property
    def counts(self) -> bool:
        """Whether sums over training batches, of the loss say, take in the present one here."""
        return self.devices == 1 or self.is_shared or self.global_rank == 0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Keep this process's part of a training batch."""
        if self.devices > 1 and self.trainer.training:
            return self.own_part(batch, self.trainer.global_rank)
        return batch

    def over_devices(self, value: Tensor | float) -> Tensor:
        """Sum of what all processes have summed up in training."""
        total = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if self.devices > 1:
            torch.distributed.all_reduce(total)
        return total

    def epoch_sums(self) -> dict[str, Any]:
        """What was summed up since an epoch of training began, as plain values and tensors."""
        return {}

    def load_epoch_sums(self, sums: Mapping[str, Any]) -> None:
        """Go on from what :meth:`epoch_sums` gave; the module may be on another device."""

    def parts(self) -> Mapping[str, nn.Module]:
        """Named parts of the network whose parameters `inspect` counts; disjoint."""
        return dict(self.net.named_children())

    def blocks(self) -> Sequence[nn.Module]:
        """Parts of the network whose weights are gathered one at a time when devices share them.

        Each is a module that is called once a pass; what is in none of them is gathered for the
        whole pass. Every parameter takes part in every loss. None by default: all devices have all
        weights, and `trainer.strategy=fsdp` is refused.
        """
        return ()

    def configure_optimizers(self) -> Any:
        """Optimizer and per-step or per-epoch schedule of the recipe."""
        optimizer = build_optimizer(self.net, self.recipe.optimizer, **self.recipe.qk_options)
        schedule = self.recipe.schedule
        total = self.schedule_length()
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda unit: schedule.factor(unit, total)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": schedule.interval},
        }

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's step, then what the attention does after one."""
        super().optimizer_step(*args, **kwargs)
        if self._tells_of_steps:
            after_step(self.net)

    def schedule_length(self) -> int:
        """Units of the schedule's interval in the whole fit."""
        if self.recipe.schedule.interval == "epoch":
            return int(self.trainer.max_epochs or 0)
        return int(self.trainer.estimated_stepping_batches)


@dataclass(frozen=True)
class Rate:
    """Learning rate and weight decay of a parameter."""

    lr: float
    weight_decay: float


def parameter_rates(
    net: nn.Module,
    config: OptimizerConfig,
    *,
    qk_lr_ratio: float = 1.0,
    qk_constant_decay: bool = True,
) -> dict[str, Rate]:
    """Rate of every trainable parameter, by its qualified name.

    Learned attention scales (tag `scale`) take no weight decay. They and the query and key
    projections (tag `qk`) learn `qk_lr_ratio` times as fast as the rest.

    Raises:
        ValueError: a ratio other than 1 where one weight holds queries, keys and values.
    """
    tags = tag_of(net)
    rates = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        tag = tags.get(name)
        lr, decay = config.lr, 0.0 if tag == "scale" else config.weight_decay
        if qk_lr_ratio != 1.0 and tag == "qkv":
            raise ValueError(
                f"recipe.qk_lr_ratio={qk_lr_ratio} must be 1 in this model: '{name}' holds "
                "queries, keys and values in one weight, which an optimizer cannot split; allowed "
                "elsewhere: layers with projection='separate'"
            )
        if tag in ("qk", "scale"):
            lr *= qk_lr_ratio
            decay /= qk_lr_ratio if qk_constant_decay else 1.0
        rates[name] = Rate(lr, decay)
    return rates


def build_optimizer(
    net: nn.Module,
    config: OptimizerConfig,
    *,
    qk_lr_ratio: float = 1.0,
    qk_constant_decay: bool = True,
) -> torch.optim.Optimizer:
    """An optimizer over `net`, one group of parameters for each of :func:`parameter_rates`.

    The first group has the recipe's own rate.

    Raises:
        ValueError: unknown optimizer, no parameter to train, or as :func:`parameter_rates`.
    """
    rates = parameter_rates(
        net, config, qk_lr_ratio=qk_lr_ratio, qk_constant_decay=qk_constant_decay
    )
    return optimizer_of(net, config, rates)


def optimizer_of(
    net: nn.Module, config: OptimizerConfig, rates: Mapping[str, Rate]
) -> torch.optim.Optimizer:
    """An optimizer over `net`, one group of parameters for each of `rates`.

    The first group has the recipe's own rate.

    Raises:
        ValueError: unknown optimizer, or no parameter to train.
    """
    members: dict[Rate, list[Tensor]] = {Rate(config.lr, config.weight_decay): []}
    for name, rate in rates.items():
        members.setdefault(rate, []).append(net.get_parameter(name))
    groups: list[dict[str, Any]] = [
        {"params": parameters, "lr": rate.lr, "weight_decay": rate.weight_decay}
        for rate, parameters in members.items()
        if parameters
    ]
    if not groups:
        raise ValueError("there is no parameter to train: all are frozen, or the model has none")
    adam: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    # One kernel for all parameters: on a CPU a fifth of the time of a step of small tensors. On a
    # GPU, where None leaves the choice to PyTorch, it would take clipping from mixed precision.
    on_cpu = all(parameter.device.type == "cpu" for parameter in net.parameters())
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
