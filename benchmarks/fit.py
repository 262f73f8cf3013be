"""One phase of a run: a Lightning fit that can be interrupted, and the test of its weights."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.loggers import Logger

from benchmarks.callbacks import (
    AttentionReadings,
    BestWeights,
    DivergenceGuard,
    Recorder,
    StepSeeds,
    WorldSize,
)
from benchmarks.config import RunConfig
from benchmarks.devices.batches import prepare
from benchmarks.devices.processes import is_witness
from benchmarks.devices.weights import strategy_of
from benchmarks.files import write_atomic
from benchmarks.loggers import build_loggers
from benchmarks.resuming import OwnSignals, ResumeFiles, ResumePoint
from benchmarks.store import Run
from domains.base import BenchmarkData, BenchmarkModule
from domains.contract import Phase, PhaseResult


class PhaseFit:
    """Trains a phase and evaluates the weights that its selection keeps.

    Args:
        run: where metrics and checkpoints go.
        cfg: the run's configuration.
        phase: length, selection and whether to test.
        data: loaders.
        module: freshly initialised model.
        progress: told about epochs and values.
        should_stop: asked between batches.
    """

    def __init__(
        self,
        run: Run,
        cfg: RunConfig,
        phase: Phase,
        data: BenchmarkData,
        module: BenchmarkModule,
        progress: Callable[[dict[str, Any]], None],
        should_stop: Callable[[], str | None],
    ) -> None:
        self._run = run
        self._cfg = cfg
        self._phase = phase
        self._data = data
        self._module = module
        self._files = ResumeFiles(run, phase.name, cfg.trainer.devices)
        readings = AttentionReadings(run, phase.name, cfg.telemetry)
        self._recorder = Recorder(run, cfg, phase, readings, progress)
        self._best = BestWeights(phase.selection)
        self._guard = DivergenceGuard(readings, cfg.trainer.accelerator)
        # Values are recorded before the selection may stop, and all of it before it is saved.
        self._callbacks: list[L.Callback] = [
            WorldSize(cfg.trainer.devices),
            OwnSignals(),
            StepSeeds(cfg.seed, phase.name),
            readings,
            self._guard,
            self._recorder,
            self._best,
            ResumePoint(run, self._files, cfg.trainer.checkpoint_every_s, should_stop),
        ]

    def fit(self) -> PhaseResult:
        """Train (from where an earlier attempt stopped), select, test.

        Raises:
            RunEnded: diverged or stopped.
        """
        if self._cfg.trainer.compile:
            self._module.net.compile()
        devices = self._cfg.trainer.devices
        if devices > 1:
            prepare(self._module, devices)
        trainer = self._trainer()
        trained = self._files.trained()
        if trained is None:
            trained = self._train(trainer)
        else:
            self._module.load_state_dict(torch.load(weights_path(self._run, self._phase.name)))
        return replace(trained, metrics=self._test(trainer) if self._phase.test else {})

    def _train(self, trainer: L.Trainer) -> PhaseResult:
        """Train and keep the selected weights; a result without metrics."""
        position = self._files.position()
        if position is not None:
            self._data.first_epoch, self._data.first_batch = position.epoch, position.batch
        trainer.fit(
            self._module, datamodule=self._data, ckpt_path=position.path if position else None
        )
        self._best.restore(self._module)
        trained = PhaseResult(
            name=self._phase.name,
            epochs=len(self._recorder.history),
            steps=trainer.global_step,
            selected_epoch=self._best.epoch,
            selected_step=self._best.step,
            best=self._best.best,
            metrics={},
            history=tuple(self._recorder.history),
            seconds=self._recorder.seconds,
            train_seconds=self._recorder.train_seconds,
        )
        if not is_witness():
            save_weights(self._module, weights_path(self._run, self._phase.name))
            self._files.keep_trained(trained)
        return trained

    def discard_resume_point(self) -> None:
        """Free the disk once the phase's result is stored."""
        if not is_witness():
            self._files.discard()

    def _trainer(self) -> L.Trainer:
        # What remains would be said once a fit, and helps nobody who reads the log of a run.
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
        settings = self._cfg.trainer
        warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
        warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # each evaluates everything
        warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated.*")
        warnings.filterwarnings("ignore", message=".*find_unused_parameters=True.*")
        warnings.filterwarnings("ignore", message=".*overridden `on_after_batch_transfer`.*")
        warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
        return L.Trainer(
            accelerator=settings.accelerator,
            devices=settings.devices,
            strategy=strategy_of(settings),
            precision=settings.precision,  # type: ignore[arg-type]  # checked by Lightning
            max_epochs=-1 if self._phase.max_epochs is None else self._phase.max_epochs,
            max_steps=-1 if self._phase.max_steps is None else self._phase.max_steps,
            gradient_clip_val=self._module.recipe.gradient_clip,
            logger=self._loggers() or False,
            callbacks=self._callbacks,
            default_root_dir=self._run.path,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            plugins=[LightningEnvironment()],  # a SLURM job here is one process, not a world
        )

    def _loggers(self) -> list[Logger]:
        if is_witness():
            return []
        return build_loggers(self._cfg, self._run, self._phase.name)

    def _test(self, trainer: L.Trainer) -> dict[str, float]:
        trainer.test(self._module, datamodule=self._data, verbose=False)
        self._guard.check_metrics(trainer)
        return {name: float(value) for name, value in trainer.callback_metrics.items()}


def weights_path(run: Run, phase: str) -> Path:
    """Where the weights are kept that a phase ends with."""
    return run.path / "checkpoints" / f"{phase}.pt"


def save_weights(module: BenchmarkModule, path: Path) -> None:
    """Keep the weights that a phase ends with."""
    # Through memory: torch hides the reason when it fails to write a file itself.
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())
