"""What the engine adds to Lightning's training loop. Order matters; see `benchmarks.fit`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from attention import telemetry
from attention.recorder import Reading
from benchmarks import hardware
from benchmarks.config import RunConfig
from benchmarks.devices import batches
from benchmarks.sections import TelemetryConfig
from benchmarks.store import Run, RunEnded
from domains.base import BenchmarkModule
from domains.common.seeds import derive
from domains.contract import Phase, Selection

Trainer = L.Trainer
Module = L.LightningModule


class StepSeeds(L.Callback):
    """Dropout is a function of (seed, phase, step) alone.

    Reseeding before every step makes the stream the same for all variants, however many random
    numbers one of them draws, and lets a resumed run continue bit for bit without storing
    generator states.
    """

    def __init__(self, seed: int, phase: str) -> None:
        self._seed = derive(seed, "dropout", phase)

    def on_train_batch_start(
        self, trainer: Trainer, module: Module, batch: Any, batch_idx: int
    ) -> None:
        torch.manual_seed(derive(self._seed, trainer.global_step))


class WorldSize(L.Callback):
    """Makes sure that as many devices train as were asked for; a scheduler may have its own idea.

    Raises:
        RuntimeError: they are fewer, or more.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices

    def on_fit_start(self, trainer: Trainer, module: Module) -> None:
        batches.check_world(self._devices)


class AttentionReadings(L.Callback):
    """Reads logits, norms and entropy off the attention layers every few steps.

    The layers are watched during those steps only: in between they do not know of it.
    """

    def __init__(self, run: Run, phase: str, config: TelemetryConfig) -> None:
        self._run = run
        self._phase = phase
        self._config = config
        self._watch: telemetry.Telemetry | None = None
        self.latest: dict[str, Reading] = {}

    def on_train_batch_start(
        self, trainer: Trainer, module: Module, batch: Any, batch_idx: int
    ) -> None:
        if self._config.mode == "off" or trainer.global_step % self._config.every:
            return
        assert isinstance(module, BenchmarkModule)
        self._watch = telemetry.attach(module.net, mode=self._config.mode, rows=self._config.rows)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._watch is None:
            return
        self._watch.detach()
        self.latest = self._watch.collect()
        self._watch = None
        self._run.append_metrics(
            {
                "phase": self._phase,
                "epoch": trainer.current_epoch,
                "step": trainer.global_step,
                "telemetry": self.latest,
            }
        )

    def state_dict(self) -> dict[str, Any]:
        return {"latest": self.latest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.latest = state_dict["latest"]

    def summary(self) -> dict[str, float]:
        """The last reading over all layers and heads: maxima of maxima, means of the rest."""
        pooled: dict[str, list[float]] = {}
        for layer in self.latest.values():
            for quantity, heads in layer.items():
                pooled.setdefault(quantity, []).extend(heads)
        return {
            quantity: max(values) if "max" in quantity else sum(values) / len(values)
            for quantity, values in pooled.items()
        }


class DivergenceGuard(L.Callback):
    """A loss that is not finite ends the run: an outcome that tables count, not an error."""

    def __init__(self, readings: AttentionReadings, accelerator: str) -> None:
        self._readings = readings
        # Looking at a loss on a GPU waits for it, so there it is done once in a while.
        self._every = 20 if hardware.uses_cuda(accelerator) else 1

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._every and batch_idx + 1 < trainer.num_training_batches:
            return
        self._check(trainer, "loss", outputs["loss"] if isinstance(outputs, Mapping) else outputs)

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        # The last update of an epoch is first seen in what is evaluated after it.
        self.check_metrics(trainer)

    def check_metrics(self, trainer: Trainer) -> None:
        """End the run if a loss that was logged is not finite."""
        for name, value in trainer.callback_metrics.items():
            if name.endswith("/loss"):
                self._check(trainer, name, value)

    def _check(self, trainer: Trainer, name: str, value: Tensor) -> None:
        finite = math.isfinite(float(value))
        if not trainer.strategy.reduce_boolean_decision(finite, all=True):
            raise RunEnded(
                "diverged",
                f"{name} {float(value)} at step {trainer.global_step}, "
                f"epoch {trainer.current_epoch}",
                step=trainer.global_step,
                epoch=trainer.current_epoch,
                telemetry=self._readings.summary(),
            )


class Recorder(L.Callback):
    """Writes each epoch's values to the store, keeps them as history, and measures time."""

    def __init__(
        self,
        run: Run,
        cfg: RunConfig,
        phase: Phase,
        readings: AttentionReadings,
        progress: Callable[[dict[str, Any]], None],
    ) -> None:
        self._run = run
        self._phase = phase
        self._readings = readings
        self._progress = progress
        self._accelerator = cfg.trainer.accelerator
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0
        self.train_seconds = 0.0
        self._epoch_began = 0.0
        self._spent_in_epoch = 0.0  # by earlier attempts
        self._last_report = 0.0

    def on_train_start(self, trainer: Trainer, module: Module) -> None:
        self._epoch_began = time.perf_counter() - self._spent_in_epoch

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        self._epoch_began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if batch_idx + 1 == trainer.num_training_batches:
            hardware.synchronize(self._accelerator)
            self.train_seconds += time.perf_counter() - self._epoch_began
        if now - self._last_report > 1.0:
            self._last_report = now
            self._report(trainer, (batch_idx + 1) / trainer.num_training_batches)

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        now = time.perf_counter()
        self.seconds += now - self._epoch_began
        self._epoch_began = now
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        values["lr"] = float(trainer.optimizers[0].param_groups[0]["lr"])
        self._run.append_metrics(
            {
                "phase": self._phase.name,
                "epoch": trainer.current_epoch,
                "step": trainer.global_step,
                "values": values,
            }
        )
        telemetry_values = {f"telemetry/{k}": v for k, v in self._readings.summary().items()}
        self.history.append({**values, **telemetry_values, "step": float(trainer.global_step)})

    def _report(self, trainer: Trainer, epoch_share: float) -> None:
        now = time.perf_counter()
        epochs = trainer.current_epoch + epoch_share
        spent = self.seconds + now - self._epoch_began
        monitor = self._phase.selection.monitor if self._phase.selection else None
        event = {
            "phase": self._phase.name,
            "epoch": trainer.current_epoch + 1,
            "max_epochs": self._phase.max_epochs,
            "step": trainer.global_step,
            "metric": monitor,
            "value": self.history[-1].get(monitor) if self.history and monitor else None,
            "seconds_per_step": spent / max(1, trainer.global_step),
        }
        if self._phase.max_epochs:
            event["seconds_left"] = spent / epochs * (self._phase.max_epochs - epochs)
        self._progress(event)

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": self.history,
            "seconds": self.seconds,
            "train_seconds": self.train_seconds,
            "epoch_seconds": time.perf_counter() - self._epoch_began,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self.seconds = state_dict["seconds"]
        self.train_seconds = state_dict["train_seconds"]
        self._spent_in_epoch = state_dict["epoch_seconds"]


class BestWeights(L.Callback):
    """Applies a :class:`Selection`: keeps the best epoch's weights, stops when patience ends."""

    def __init__(self, selection: Selection | None) -> None:
        self._selection = selection
        self.best: float | None = None
        self.epoch = -1
        self.step = 0
        self._waited = 0
        self._weights: dict[str, Tensor] = {}

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        if self._selection is None:
            self.epoch, self.step = trainer.current_epoch, trainer.global_step
            return
        monitor = self._selection.monitor
        if monitor not in trainer.callback_metrics:
            raise ValueError(
                f"selection watches '{monitor}', which was not logged; "
                f"logged: {', '.join(trainer.callback_metrics)}"
            )
        # That of one device for all: they must decide alike, to the last bit.
        value = trainer.strategy.broadcast(float(trainer.callback_metrics[monitor]))
        if self._selection.decimals is not None:
            value = round(value, self._selection.decimals)
        if self._is_better(value):
            self.best, self.epoch, self.step = value, trainer.current_epoch, trainer.global_step
            self._waited = 0
            self._weights = {
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in trainer.strategy.lightning_module_state_dict().items()
            }
            return
        self._waited += 1
        if self._selection.patience is not None and self._waited >= self._selection.patience:
            trainer.should_stop = True

    def restore(self, module: Module) -> None:
        """Put the kept weights into the model."""
        if self._weights:
            module.load_state_dict(self._weights)

    def _is_better(self, value: float) -> bool:
        assert self._selection is not None
        if self.best is None:
            return not math.isnan(value)
        if value == self.best:
            return self._selection.ties == "later"
        return value > self.best if self._selection.mode == "max" else value < self.best

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "epoch": self.epoch,
            "step": self.step,
            "waited": self._waited,
            "weights": self._weights,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.epoch = state_dict["epoch"]
        self.step = state_dict["step"]
        self._waited = state_dict["waited"]
        self._weights = state_dict["weights"]
