"""How time and memory are measured.

Time. Baseline and candidate run in turns in the same process, the order inside a pair changing
from pair to pair, so that a machine that slows down slows both. The ratio is the median of the
ratios of the pairs; beside it stand the quartiles. Each sample repeats the step until it lasts
long enough for the clock. Garbage collection is off meanwhile. The clock is the one on the wall;
CPU time of the process, which leaves out the neighbours on a shared machine, can be asked for.

Memory. The peak of what torch's allocator holds during one step, above what it held when the step
began, in the steady state: parameters, inputs and optimizer state do not count, activations,
gradients and the kernels' own buffers do. On a CPU the profiler reports every allocation, so the
number is exact and repeatable, which the resident size of a process is not; buffers that
libraries allocate by themselves are not seen. On a GPU it is `max_memory_allocated`.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import quantiles

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from domains.speed_cases import SpeedCase, Step, TimeLimit

_SLOW_SECONDS = 1.0
"""Of a step that is warm after one call."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        seconds: time of our step or action.
        baseline_seconds: time of the reference point, None for a :class:`TimeLimit`.
        ratio: candidate / baseline of the times, None for a :class:`TimeLimit`.
        memory: peak bytes of our step, None where it is not measured.
        baseline_memory: peak bytes of the reference point.
        time_target: largest ratio, or for a :class:`TimeLimit` largest seconds, that is wanted.
        memory_target: largest memory ratio that is wanted.
        samples: number of pairs; 1 for a :class:`TimeLimit`.
        tokens: that a step goes through, None where nobody asked.
    """

    group: str
    name: str
    against: str
    seconds: Spread
    samples: int
    baseline_seconds: Spread | None = None
    ratio: Spread | None = None
    memory: int | None = None
    baseline_memory: int | None = None
    time_target: float | None = None
    memory_target: float | None = None
    tokens: int | None = None

    @property
    def memory_ratio(self) -> float | None:
        """Candidate / baseline of the peak memory."""
        if self.memory is None or not self.baseline_memory:
            return None
        return self.memory / self.baseline_memory

    @property
    def reached(self) -> bool | None:
        """Whether every target is met, to the two decimals that are printed; None without one."""
        time_value = self.seconds.median if self.ratio is None else self.ratio.median
        checks = [
            round(value, 2) <= target
            for value, target in (
                (time_value, self.time_target),
                (self.memory_ratio, self.memory_target),
            )
            if value is not None and target is not None
        ]
        return all(checks) if checks else None


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        seconds: time spent on the pairs of one case.
        min_pairs: pairs measured even if that takes longer.
        sample_seconds: shortest sample; faster steps are repeated inside it.
        most_seconds: after which a case of slow steps ends, with fewer pairs and rounds.
        rounds: parts of the measurement, for each of which both sides are built anew. Where its
            tensors happen to lie makes two equal models differ by 5 % for as long as they live.
        clock: gives the time in seconds.
    """

    seconds: float = 6.0
    min_pairs: int = 12
    sample_seconds: float = 0.02
    most_seconds: float = 60.0
    rounds: int = 4
    clock: Callable[[], float] = time.perf_counter

    def of_a_round(self) -> Effort:
        """The effort of one round."""
        return replace(
            self,
            seconds=self.seconds / self.rounds,
            min_pairs=math.ceil(self.min_pairs / self.rounds),
            most_seconds=self.most_seconds / self.rounds,
            rounds=1,
        )


QUICK = Effort(seconds=0.5, min_pairs=3, sample_seconds=0.005, rounds=1)


def compare(case: SpeedCase, *, device: str, effort: Effort) -> Row:
    """Measure time and memory of both sides of a case."""
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + effort.most_seconds
    enough = 1 if case.time_target is None else 2
    for number in range(effort.rounds):
        if number >= enough and time.perf_counter() > end:
            break
        # Built in turns, too; the sides of the round before are freed first.
        baseline = candidate = None
        if number % 2:
            candidate, baseline = case.candidate(), case.baseline()
        else:
            baseline, candidate = case.baseline(), case.candidate()
        times += pairs_of_times(baseline, candidate, device=device, effort=effort.of_a_round())
    assert baseline is not None
    assert candidate is not None
    before, after = zip(*times, strict=True)
    return Row(
        group=case.group,
        name=case.name,
        against=case.against,
        seconds=Spread.of(after),
        baseline_seconds=Spread.of(before),
        ratio=Spread.of([ours / theirs for theirs, ours in times]),
        memory=peak_memory(candidate, device=device) if case.memory else None,
        baseline_memory=peak_memory(baseline, device=device) if case.memory else None,
        time_target=case.time_target,
        memory_target=case.memory_target,
        samples=len(times),
        tokens=case.tokens,
    )


def time_limit(case: TimeLimit) -> Row:
    """Measure an action once, from beginning to end: what was cached before does not count."""
    action = case.prepare()
    with quiet_collector():
        start = time.perf_counter()
        action()
        seconds = time.perf_counter() - start
    return Row(
        group=case.group,
        name=case.name,
        against="",
        seconds=Spread.of([seconds]),
        time_target=case.limit,
        samples=1,
    )


def pairs_of_times(
    baseline: Step, candidate: Step, *, device: str, effort: Effort
) -> list[tuple[float, float]]:
    """Seconds a step of baseline and candidate, measured in turns after a warm-up."""
    sample = partial(seconds_of, device=device, clock=effort.clock)
    slowest = 0.0
    for step in (baseline, candidate):
        first = sample(step, 1)
        if first < _SLOW_SECONDS:
            sample(step, 1)
            first = sample(step, 1)
        slowest = max(slowest, first)
    repeats = max(1, math.ceil(effort.sample_seconds / max(slowest, 1e-9)))
    pairs: list[tuple[float, float]] = []
    with quiet_collector():
        begin = time.perf_counter()
        while not pairs or _goes_on(len(pairs), time.perf_counter() - begin, effort):
            if len(pairs) % 2:
                ours = sample(candidate, repeats)
                theirs = sample(baseline, repeats)
            else:
                theirs = sample(baseline, repeats)
                ours = sample(candidate, repeats)
            pairs.append((theirs, ours))
    return pairs


def _goes_on(pairs: int, seconds: float, effort: Effort) -> bool:
    if pairs < effort.min_pairs:
        return seconds < effort.most_seconds
    return seconds < effort.seconds


def seconds_of(step: Step, repeats: int, *, device: str, clock: Callable[[], float]) -> float:
    """Mean time of a step over some repetitions, the device's queue included."""
    synchronize(device)
    start = clock()
    for _ in range(repeats):
        step()
    synchronize(device)
    return (clock() - start) / repeats


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def peak_memory(step: Step, *, device: str) -> int:
    """Peak bytes that a step adds to what is held when it begins."""
    if device.startswith("cuda"):
        step()
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        step()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - held
    # The first step inside the profile replaces everything that was allocated before it, whose
    # release the profiler would not report; the second one is measured.
    mark = "measured step"
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        step()
        with record_function(mark):
            step()
    # The public summaries give sums by operator; the peak needs the single events.
    events = run.profiler.kineto_results.events()
    begin = next(event.start_ns() for event in events if event.name() == mark)
    changes = sorted(
        ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
        key=lambda change: change[0],
    )
    level = peak = 0
    for moment, change in changes:
        if moment >= begin:
            level += change
            peak = max(peak, level)
    return peak


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the measured time."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hide what libraries write straight to the error stream: the profiler tells of each start."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
