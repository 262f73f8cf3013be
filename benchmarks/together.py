"""Executes a group of runs inside a worker: one batched training, a result for each run.

A group is short, so nothing of it is saved on the way: one that was interrupted starts anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks import hardware, provenance
from benchmarks.config import RunConfig
from benchmarks.files import for_each, set_aside
from benchmarks.fit import save_weights, weights_path
from benchmarks.resuming import file_names
from benchmarks.runner import Progress, ShouldStop, build_data, build_module, make_result
from benchmarks.store import ClaimLostError, Run, RunEnded
from domains.base import BenchmarkData, BenchmarkModule, Domain
from domains.contract import Phase, PhaseResult
from domains.registry import load as load_domain


def execute(
    runs: Sequence[Run],
    configs: Sequence[Mapping[str, Any]],
    progress: Progress,
    should_stop: ShouldStop,
) -> list[RunEnded | None]:
    """Train and evaluate runs that differ in the seed and `spec.together.keys` alone.

    Args:
        runs: where everything is written.
        configs: their stored configurations.
        progress: told about epochs and the time left.
        should_stop: asked after every epoch; a word ends all with that state.

    Returns:
        For every run None if it has a result, or how it ended without one.

    Raises:
        RunEnded: the group was stopped, or its variant cannot serve this domain.
        ValueError: the runs are not of a kind that can be trained together.
    """
    cfgs = [RunConfig.from_dict(config) for config in configs]
    domain = load_domain(cfgs[0].domain)
    phase = _phase(domain, cfgs)
    hardware.set_numerics()
    made = provenance.collect(
        device=hardware.device_name(cfgs[0].trainer.accelerator), threads=torch.get_num_threads()
    )
    memory = hardware.PeakMemory(cfgs[0].trainer.accelerator)
    members = [_Member(*pair, phase) for pair in zip(runs, cfgs, strict=True)]
    for_each(lambda member: member.begin({**made, "earlier_code": []}), members)
    data = build_data(domain, cfgs[0], phase)
    if phase.test:
        data.setup("test")
    modules = [build_module(domain, cfg, data) for cfg in cfgs]
    watch = _Watch(members, phase, progress, should_stop)
    try:
        tests = domain.train_together(cfgs, modules, data, phase, watch.epoch_ended)
    finally:
        for_each(_Member.write_records, members)

    for_each(
        lambda trained: trained[0].finish(domain, data, *trained[1:], memory, watch),
        list(zip(members, modules, tests, strict=True)),
    )
    return [member.ended for member in members]


def _phase(domain: Domain, cfgs: Sequence[RunConfig]) -> Phase:
    """The one phase of all runs."""
    phase, *others = [domain.next_phase(cfg, []) for cfg in cfgs]
    alike = all(other == phase for other in others)
    if phase is None or phase.selection is not None or not phase.max_epochs or not alike:
        raise ValueError(
            f"runs of domain '{domain.name}' that are trained together need the same phase, of a "
            f"given number of epochs and without a selection: {phase}, {others}"
        )
    return phase


class _Member:
    """One run of a group: what is logged for it, and how it ended.

    Attributes:
        cfg: its configuration.
        ended: how, if not with a result.
    """

    def __init__(self, run: Run, cfg: RunConfig, phase: Phase) -> None:
        self._run = run
        self._phase = phase
        self._records: list[dict[str, Any]] = []
        self.cfg = cfg
        self.ended: RunEnded | None = None

    @contextmanager
    def _while_mine(self) -> Iterator[None]:
        """Write as long as no other runner has taken the run over."""
        try:
            yield
        except ClaimLostError as lost:
            self.ended = RunEnded("interrupted", str(lost))

    def begin(self, made: Mapping[str, Any]) -> None:
        """Store how this attempt is made."""
        with self._while_mine():
            self._run.write_json("provenance.json", made)

    def record(self, epoch: int, step: int, logged: Mapping[str, float]) -> None:
        """Keep the values of an epoch, unless they show that the run has diverged."""
        self.check(epoch, step, logged)
        if self.ended is None:
            self._records.append(
                {"phase": self._phase.name, "epoch": epoch, "step": step, "values": dict(logged)}
            )

    def check(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """A loss that is not finite ends this run alone."""
        for name, value in values.items():
            if self.ended is None and name.endswith("/loss") and not math.isfinite(value):
                self.ended = RunEnded(
                    "diverged",
                    f"{name} {value} at step {step}, epoch {epoch}",
                    step=step,
                    epoch=epoch,
                )

    def write_records(self) -> None:
        """Store what was logged, at once: waiting for the disk epoch by epoch takes too long."""
        if self._records:
            with self._while_mine():
                self._run.append_metrics(*self._records)

    def finish(
        self,
        domain: Domain,
        data: BenchmarkData,
        module: BenchmarkModule,
        tested: Mapping[str, float],
        memory: hardware.PeakMemory,
        watch: _Watch,
    ) -> None:
        """Store weights and result."""
        epoch, step, together = watch.epochs - 1, watch.step, len(watch.members)
        self.check(epoch, step, tested)
        if self.ended is not None:
            return
        done = PhaseResult(
            name=self._phase.name,
            epochs=watch.epochs,
            steps=step,
            selected_epoch=epoch,
            selected_step=step,
            best=None,
            metrics=dict(tested),
            history=tuple({**one["values"], "step": float(one["step"])} for one in self._records),
            seconds=watch.seconds / together,
            train_seconds=watch.seconds / together,
        )
        result = make_result(domain, self.cfg, data, module, [done], memory, together)
        with self._while_mine():
            for name in ("phases.json", *file_names(done.name)):
                set_aside(self._run.path / name, "replaced")  # of an earlier attempt by itself
            save_weights(module, weights_path(self._run, done.name))
            self._run.write_result(result)


class _Watch:
    """Follows the training of a group.

    Attributes:
        members: its runs.
        epochs: how many have ended.
        step: optimizer steps taken.
        seconds: wall time of training and validation of all.
    """

    def __init__(
        self,
        members: Sequence[_Member],
        phase: Phase,
        progress: Progress,
        should_stop: ShouldStop,
    ) -> None:
        self._phase = phase
        self._progress = progress
        self._should_stop = should_stop
        self._since = time.perf_counter()
        self.members = members
        self.epochs = 0
        self.step = 0
        self.seconds = 0.0

    def epoch_ended(self, step: int, values: Sequence[Mapping[str, float]]) -> None:
        """Take down an epoch of all runs; see :meth:`Domain.train_together`.

        Raises:
            RunEnded: the launcher asks to stop.
        """
        self.seconds += time.perf_counter() - self._since
        for member, logged in zip(self.members, values, strict=True):
            member.record(self.epochs, step, logged)
        self.epochs, self.step = self.epochs + 1, step
        left = (self._phase.max_epochs or 0) - self.epochs
        self._progress(
            {
                "phase": self._phase.name,
                "epoch": self.epochs,
                "max_epochs": self._phase.max_epochs,
                "step": step,
                "metric": None,
                "value": None,
                "seconds_per_step": self.seconds / max(1, step),
                "seconds_left": self.seconds / self.epochs * left,
            }
        )
        state = self._should_stop()
        if state is not None and left:
            raise RunEnded(state, f"stopped in epoch {self.epochs - 1}, step {step}")
        self._since = time.perf_counter()
