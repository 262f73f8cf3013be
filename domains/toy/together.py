"""Trains many runs of the toy task as one batched model.

The runs differ in their weights, learning rates and weight decays; data and order of the batches
are the same for all. Each ends where it would have ended by itself, up to rounding
(`tests/domains/toy/test_together.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from attention.steps import needs_steps
from domains.base import BenchmarkModule, EpochEnded, parameter_rates
from domains.common.schedules import schedule_factor
from domains.contract import Phase
from domains.toy.data import ToyData
from domains.toy.module import ToyModule
from domains.toy.optimizer import StackedAdamW
from domains.toy.outcomes import READINGS, readings
from domains.toy.stack import ModelStack

EVAL_BATCH = 50
"""Samples in an evaluation batch, so that the keys of all models fit a cache. Results do not
depend on it."""

LARGE_BLOCK = 31 * 2**20
"""Bytes; see :func:`_keep_freed_memory`."""


def train_together(
    cfgs: Sequence[Any],
    modules: Sequence[BenchmarkModule],
    data: ToyData,
    phase: Phase,
    epoch_ended: EpochEnded,
) -> Sequence[Mapping[str, float]]:
    """As :meth:`domains.base.Domain.train_together`.

    Raises:
        ValueError: the recipe has an optimizer that is not batched, or the attention acts after
            optimizer steps.
    """
    name = cfgs[0].recipe.optimizer.name
    if name != "adamw":
        raise ValueError(
            f"recipe.optimizer.name={name!r} cannot be trained as one batch of runs, only adamw; "
            "launcher.together=false trains the runs one by one"
        )
    nets = [cast(ToyModule, module).net for module in modules]
    if needs_steps(nets[0]):
        raise ValueError(
            f"attention={nets[0].attention.core.name!r} acts after optimizer steps and cannot be "
            "trained as one batch of runs; launcher.together=false trains the runs one by one"
        )
    assert phase.max_epochs is not None, "phases of this domain count epochs"
    _keep_freed_memory()
    # Of variants with parameters, whose normalisation is then done model by model: known.
    warnings.filterwarnings("ignore", message="There is a performance drop")
    fit = _Fit([cast(ToyModule, module) for module in modules], data, phase.max_epochs)
    _, initial = fit.evaluate("train")
    values = {f"initial/{name}": value for name, value in initial.items()}
    for epoch in range(phase.max_epochs):
        values["train/loss"] = fit.train(epoch)
        values["train/accuracy"], means = fit.evaluate("train")
        values["test/accuracy"], _ = fit.evaluate("test")
        values |= {f"probe/{name}": value for name, value in means.items()}
        rows = torch.stack(list(values.values()), dim=1).tolist()
        logged = [dict(zip(values, row, strict=True)) for row in rows]
        for run, cfg in zip(logged, cfgs, strict=True):
            run["lr"] = cfg.recipe.optimizer.lr * fit.factor(epoch + 1)
        epoch_ended(fit.steps, logged)
        values = {}
    fit.stack.write_back(nets)
    return [{"test/accuracy": run["test/accuracy"]} for run in logged]


class _Fit:
    """Models, optimizer and data of one training."""

    def __init__(self, modules: Sequence[ToyModule], data: ToyData, epochs: int) -> None:
        self.stack = ModelStack([module.net for module in modules])
        self.steps = 0
        self._models = len(modules)
        self._recipe = modules[0].recipe
        self._optimizer = _optimizer(modules, self.stack)
        self._data = data
        self._epochs = epochs
        weights = self.stack.weights
        for split in data.splits.values():
            split.move(weights.device)
        prepare = self.stack.net.prepare
        self._prepared = {name: prepare(split.tokens) for name, split in data.splits.items()}
        self._gradient = torch.empty_like(weights)

    def factor(self, epoch: int) -> float:
        """Of the schedule, on the learning rates of the next step, which is in this epoch."""
        schedule = self._recipe.schedule
        if schedule.interval == "epoch":
            return schedule_factor(schedule, epoch, self._epochs)
        return schedule_factor(schedule, self.steps, self._epochs * len(self._data.order(epoch)))

    def train(self, epoch: int) -> Tensor:
        """(M,) mean losses over the samples of an epoch, as they were trained on; float64."""
        split, prepared = self._data.splits["train"], self._prepared["train"]
        leaves = list(self.stack.parameters.values())
        clip = self._recipe.gradient_clip
        total = torch.zeros(self._models, dtype=torch.float64, device=prepared.device)
        for index in self._data.order(epoch):
            index = index.to(prepared.device)
            logits = self.stack.net.logits(prepared[index])
            labels = split.labels[index].repeat(self._models)
            losses = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
            losses = losses.view(self._models, -1)
            # The sum over models gives each of them the gradient of its own mean.
            gradients = torch.autograd.grad(losses.mean(1).sum(), leaves)
            torch.cat([g.flatten(1) for g in gradients], dim=1, out=self._gradient)
            if clip is not None:
                norms = self._gradient.norm(dim=1, keepdim=True)
                self._gradient.mul_((clip / (norms + 1e-6)).clamp(max=1.0))
            self._optimizer.step(self._gradient, self.factor(epoch))
            self.steps += 1
            total += losses.detach().sum(1)
        return total / len(split)

    @torch.no_grad()
    def evaluate(self, name: str) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(M,) accuracies in % on a split, and (M,) means of all readings that occur there."""
        split, prepared = self._data.splits[name], self._prepared[name]
        right = torch.zeros(self._models, dtype=torch.float64, device=prepared.device)
        sums = torch.zeros(self._models, len(READINGS), dtype=torch.float64, device=right.device)
        counts = torch.zeros(len(READINGS), dtype=torch.float64, device=right.device)
        for start in range(0, len(split), EVAL_BATCH):
            part = slice(start, start + EVAL_BATCH)
            logits, looks = self.stack.net.evaluate(prepared[part])
            right += (logits.argmax(-1) == split.labels[part]).sum(1)
            read = readings(looks, split.positions[part], split.biased[part])
            sums += read[0]
            counts += read[1]
        means = dict(zip(READINGS, (sums / counts).unbind(1), strict=True))
        there = dict(zip(READINGS, (counts > 0).tolist(), strict=True))
        return 100.0 * right / len(split), {n: mean for n, mean in means.items() if there[n]}


def _optimizer(modules: Sequence[ToyModule], stack: ModelStack) -> StackedAdamW:
    """Rates and decays are those that each module's own optimizer has for each parameter."""
    rates: dict[str, list[float]] = {name: [] for name in stack.parameters}
    decays: dict[str, list[float]] = {name: [] for name in stack.parameters}
    for module in modules:
        recipe = module.recipe
        own = parameter_rates(module.net, recipe.optimizer, **recipe.qk_options)
        for name, rate in own.items():
            rates[name].append(rate.lr)
            decays[name].append(rate.weight_decay)
    config = modules[0].recipe.optimizer
    lr, decay = stack.columns(rates), stack.columns(decays)
    return StackedAdamW(stack.weights, lr, decay, betas=config.betas, eps=config.eps)


def _keep_freed_memory() -> None:
    """Let the C library keep large blocks that are freed.

    By default glibc gives them back to the system, and a third of a training step goes into
    mapping them anew. It keeps blocks of the size of the largest one that was freed so far, up to
    32 MB, and twice as much in all.
    """
    torch.empty(LARGE_BLOCK, dtype=torch.uint8)
