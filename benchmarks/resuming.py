"""Where a fit can be continued: its files, and the callbacks that write them when it is stopped."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import distributed as dist

from benchmarks.devices.processes import is_witness
from benchmarks.files import read_json, replacing, set_aside
from benchmarks.states import SCHEMA
from benchmarks.store import CorruptFileError, Run, RunEnded
from domains.base import BenchmarkModule
from domains.common.samplers import Remaining
from domains.contract import PhaseResult

_INSIDE = "inside_epoch"
_VALIDATION = "epoch_loop.val_loop.batch_progress"
_BATCHES_BEFORE_ASKING = 10

Trainer = L.Trainer
Module = L.LightningModule


@dataclasses.dataclass(frozen=True)
class Position:
    """From where a fit continues.

    Attributes:
        path: its checkpoint.
        epoch: the epoch to train next.
        batch: how many batches of that epoch have been trained.
        step: optimizer steps taken.
    """

    path: Path
    epoch: int
    batch: int
    step: int


class ResumeFiles:
    """What a phase leaves behind until its result is stored.

    The state at the end of an epoch and the state where the fit was stopped inside one are kept
    side by side: the latter needs as many devices as it was written with.

    Args:
        run: whose.
        phase: name of the phase.
        devices: that train this time.

    Attributes:
        epoch_end: checkpoint of the end of an epoch.
        inside: checkpoint of the middle of an epoch.
    """

    def __init__(self, run: Run, phase: str, devices: int) -> None:
        names = file_names(phase)
        self._run = run
        self._devices = devices
        self._trained = names[2]
        self.epoch_end, self.inside, _ = (run.path / name for name in names)

    def position(self) -> Position | None:
        """The latest from which this fit can go on; damaged files are set aside."""
        found = filter(None, map(self._position, (self.epoch_end, self.inside)))
        # Of two after the same step the end of the epoch is the later: it comes first here.
        return max(found, key=lambda position: position.step, default=None)

    def _position(self, path: Path) -> Position | None:
        if not path.exists():
            return None
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip() is not None
        except zipfile.BadZipFile:
            damaged = True
        if damaged:
            moved = set_aside(path, "corrupt")
            print(f"{path} is damaged and was set aside as {moved}; the phase goes on without it")
            return None
        saved = torch.load(path, mmap=True, weights_only=True)
        inside = saved.get(_INSIDE)
        if inside is None:
            return Position(path, saved["epoch"] + 1, 0, saved["global_step"])
        if (devices := len(inside["sums"])) != self._devices:
            print(
                f"{path} was written by {devices} devices and does not fit {self._devices}: the "
                "phase goes on from the end of an epoch"
            )
            return None
        return Position(path, saved["epoch"], inside["batch"], saved["global_step"])

    def keep_trained(self, result: PhaseResult) -> None:
        """Note that the phase is trained, its weights kept, and only its test is left."""
        self._run.write_json(self._trained, dataclasses.asdict(result))

    def trained(self) -> PhaseResult | None:
        """What :meth:`keep_trained` noted, if it did."""
        try:
            raw = read_json(self._run.path / self._trained, SCHEMA)
        except CorruptFileError as error:
            print(
                f"{error.path} is damaged and was set aside as {set_aside(error.path, 'corrupt')}"
            )
            return None
        return None if raw is None else phase_result(raw)

    def discard(self) -> None:
        """Free the disk."""
        for path in (self.epoch_end, self.inside, self._run.path / self._trained):
            path.unlink(missing_ok=True)


def file_names(phase: str) -> tuple[str, str, str]:
    """Files of a phase in the folder of a run: end of an epoch, inside one, trained."""
    start = f"checkpoints/{phase}"
    return f"{start}.resume.ckpt", f"{start}.inside.ckpt", f"{start}.trained.json"


def phase_result(raw: Mapping[str, Any]) -> PhaseResult:
    """A result from what JSON makes of it.

    Raises:
        KeyError, TypeError: it is none.
    """
    return PhaseResult(**{**raw, "history": tuple(raw["history"])})


class OwnSignals(L.Callback):
    """Keeps the answer to SIGTERM that the launcher has set up, which ends a run by asking it to.

    Lightning's own raises between two batches, before anything is saved.
    """

    def __init__(self) -> None:
        self._answer: Any = signal.SIG_DFL

    def setup(self, trainer: Trainer, module: Module, stage: str) -> None:
        self._answer = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, module: Module) -> None:
        self._put_back()

    def on_test_start(self, trainer: Trainer, module: Module) -> None:
        self._put_back()

    def _put_back(self) -> None:
        # Elsewhere than in the main thread Lightning sets none up, nor may anybody.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._answer)


class ResumePoint(L.Callback):
    """Saves the whole state of a fit, and ends it when the launcher asks for that.

    It is saved at the end of an epoch, at most every `every_s` seconds, and where it is asked to
    stop: after any batch of training, or in a validation, which is then made anew. What a
    checkpoint of Lightning leaves out in the middle of an epoch is added: what the module has
    summed up and logged since the epoch began. Dropout needs nothing: see
    :class:`~benchmarks.callbacks.StepSeeds`. A training loader without :class:`Remaining`, which
    cannot begin there, is not saved there: the last end of an epoch has to do.

    The last epoch of a fit that a selection ends is not saved: a run that is killed after it
    repeats that epoch, and with it the decision to stop. After it, and in a test, a stop ends the
    run with what :meth:`ResumeFiles.keep_trained` has noted.

    Several devices must agree on the batch, so they ask one another, once in a while.

    Args:
        run: may be another runner's by now; then nothing is written.
        files: where to.
        every_s: see above.
        should_stop: asked after every batch.
    """

    def __init__(
        self, run: Run, files: ResumeFiles, every_s: float, should_stop: Callable[[], str | None]
    ) -> None:
        self._run = run
        self._files = files
        self._every_s = every_s
        self._should_stop = should_stop
        self._saved = time.monotonic()
        self._inside: int | None = None  # batches trained, while a stop inside an epoch is saved
        self._logged: dict[str, torch.Tensor] = {}  # before a validation that is made anew

    # Stops

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_last_batch:
            self._stop_inside(trainer, batch_idx, batch_idx + 1)

    def on_validation_batch_start(
        self, trainer: Trainer, module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._stop_inside(trainer, batch_idx, int(trainer.num_training_batches))

    def on_test_batch_start(
        self, trainer: Trainer, module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if (state := self._asked(trainer, batch_idx)) is not None:
            raise RunEnded(state, "stopped in the test")

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        if trainer.should_stop:
            return
        state = self._asked(trainer, 0)
        due = time.monotonic() - self._saved >= self._every_s
        if state is None and not trainer.strategy.broadcast(due):
            return
        self._save(trainer, self._files.epoch_end)
        if not is_witness():
            self._files.inside.unlink(missing_ok=True)
        self._saved = time.monotonic()
        if state is not None:
            raise _ended(trainer, state)

    def _stop_inside(self, trainer: Trainer, number: int, trained: int) -> None:
        """End the fit, after `trained` batches of its epoch, if that is asked for."""
        if (state := self._asked(trainer, number)) is None:
            return
        if isinstance(getattr(trainer.train_dataloader, "sampler", None), Remaining):
            self._inside = trained
            self._save(trainer, self._files.inside)
        raise _ended(trainer, state)

    def _asked(self, trainer: Trainer, number: int) -> str | None:
        if trainer.world_size == 1:
            return self._should_stop()
        if number % _BATCHES_BEFORE_ASKING:
            return None
        state: str | None = trainer.strategy.broadcast(self._should_stop())
        return state

    # Checkpoints

    def _save(self, trainer: Trainer, path: Path) -> None:
        self._run.check_claim()
        if is_witness():  # has its share in the checkpoint, which rank 0 writes
            trainer.save_checkpoint(path)
        else:
            with replacing(path) as partial:
                trainer.save_checkpoint(partial)

    def on_save_checkpoint(
        self, trainer: Trainer, module: Module, checkpoint: dict[str, Any]
    ) -> None:
        if self._inside is None:
            return
        assert isinstance(module, BenchmarkModule)
        cpu = torch.device("cpu")
        sums = move_data_to_device(module.epoch_sums(), cpu)
        checkpoint[_INSIDE] = {
            "batch": self._inside,
            "sums": _of_all(trainer, sums),
            "logged": {},
        }
        if trainer.validating:
            # What training has logged, which Lightning shows when the epoch ends.
            logged = trainer.fit_loop.epoch_loop._results.metrics(on_step=False)["callback"]
            checkpoint[_INSIDE]["logged"] = move_data_to_device(logged, cpu)
            # The form in which Lightning knows an evaluation that was broken off; at its start.
            progress = checkpoint["loops"]["fit_loop"][_VALIDATION]
            progress["current"].update(ready=0, started=0, processed=0, completed=0)
            progress["total"].update(ready=1, started=1, processed=0, completed=0)

    def on_load_checkpoint(
        self, trainer: Trainer, module: Module, checkpoint: dict[str, Any]
    ) -> None:
        inside = checkpoint.get(_INSIDE)
        if inside is not None:
            assert isinstance(module, BenchmarkModule)
            module.load_epoch_sums(inside["sums"][trainer.global_rank])
            self._logged = inside["logged"]

    def on_validation_epoch_end(self, trainer: Trainer, module: Module) -> None:
        for name, value in self._logged.items():
            module.log(name, value.to(module.device), on_step=False, on_epoch=True, batch_size=1)
        self._logged = {}


def _of_all(trainer: Trainer, own: dict[str, Any]) -> list[dict[str, Any]]:
    """What each process has, by rank."""
    if trainer.world_size == 1:
        return [own]
    found: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(found, own)
    return found


def _ended(trainer: Trainer, state: str) -> RunEnded:
    return RunEnded(state, f"stopped in epoch {trainer.current_epoch}, step {trainer.global_step}")
