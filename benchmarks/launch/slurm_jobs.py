"""Which runs share a job of a cluster, and which jobs an array. Needs no cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.launch.planned import PlannedRun
from benchmarks.sections import LauncherConfig

_MARGIN = 1.5  # of time and memory over what was measured, often on another machine
_START_MINUTES = 10  # packages and data read over a cold network file system
_MINUTES = (15, 30, 60, 120, 240, 480, 960)
_MEMORY_BESIDE_GB = 2


@dataclass(frozen=True)
class Needs:
    """What a job asks the cluster for; jobs with equal needs form an array.

    Attributes:
        devices: GPUs, or processes on a CPU.
        gpu: whether the devices are GPUs.
        minutes: time limit.
        mem_gb: memory, None for the cluster's default.
        cpus: cores.
    """

    devices: int
    gpu: bool
    minutes: int
    mem_gb: float | None
    cpus: int


@dataclass(frozen=True)
class Job:
    """Runs that share a job, one after the other.

    Attributes:
        runs: in order; groups that are trained together are never split.
        seconds: how long they are expected to take, None if unknown.
    """

    runs: tuple[PlannedRun, ...]
    seconds: float | None


def arrays(
    runs: Sequence[PlannedRun], launcher: LauncherConfig, accelerator: str
) -> dict[Needs, list[Job]]:
    """Pack runs into jobs and sort the jobs into arrays.

    Raises:
        ValueError: the accelerator is none of a cluster's.
    """
    if accelerator == "mps":
        raise ValueError(
            "trainer.accelerator=mps is no device of a cluster; allowed with launcher=slurm: auto, "
            "cuda, cpu"
        )
    alike: dict[tuple[int, float | None], list[Job]] = {}
    for job in _units(runs):
        jobs = alike.setdefault((job.runs[0].devices, _memory(job, launcher)), [])
        both = _joined(jobs[-1], job, launcher.slurm.pack_minutes * 60) if jobs else None
        if both is None:
            jobs.append(job)
        else:
            jobs[-1] = both
    found: dict[Needs, list[Job]] = {}
    for (devices, memory), jobs in alike.items():
        for job in jobs:
            needs = Needs(
                devices=devices,
                gpu=accelerator != "cpu",
                minutes=_minutes(job, launcher),
                mem_gb=memory,
                cpus=launcher.slurm.cpus or launcher.threads * devices,
            )
            found.setdefault(needs, []).append(job)
    return found


def in_words(runs: Sequence[PlannedRun], launcher: LauncherConfig, accelerator: str) -> str:
    """What a plan costs: `slurm: 12 jobs in 2 arrays, about 3.5 device hours`."""
    found = arrays(runs, launcher, accelerator)
    jobs = [(needs, job) for needs, part in found.items() for job in part]
    if not jobs:
        return "slurm: nothing to submit"
    known = [needs.devices * job.seconds for needs, job in jobs if job.seconds is not None]
    hours = f"about {sum(known) / 3600:.2g} device hours"
    if not known:
        hours = "device hours unknown until one like them was run"
    elif len(known) < len(jobs):
        hours += f" for the {len(known)} whose time is known"
    limit = sum(needs.devices * needs.minutes for needs, _ in jobs) / 60
    return (
        f"slurm: {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} in {len(found)} "
        f"{'array' if len(found) == 1 else 'arrays'}, {hours} (limits: {limit:.3g})"
    )


def _units(runs: Sequence[PlannedRun]) -> list[Job]:
    """The smallest jobs: single runs, and groups that are trained together."""
    units: dict[object, list[PlannedRun]] = {}
    for run in runs:
        units.setdefault(run.key if run.group is None else run.group, []).append(run)
    found = []
    for members in units.values():
        known = [run.estimate for run in members if run.estimate is not None]
        found.append(Job(tuple(members), sum(known) if len(known) == len(members) else None))
    return found


def _joined(before: Job, job: Job, limit: float) -> Job | None:
    """Two jobs as one, if that is short enough. What takes nobody knows how long stays alone."""
    if before.seconds is None or job.seconds is None or before.seconds + job.seconds > limit:
        return None
    return Job((*before.runs, *job.runs), before.seconds + job.seconds)


def _memory(job: Job, launcher: LauncherConfig) -> float | None:
    """Memory to ask for, in few steps, so that few arrays come of it."""
    if launcher.slurm.mem_gb is not None:
        return launcher.slurm.mem_gb
    measured = [run.memory for run in job.runs if run.memory is not None]
    if not measured:
        return None
    devices = job.runs[0].devices
    gigabytes = max(measured) / 1e9 * _MARGIN * devices + _MEMORY_BESIDE_GB
    return float(2 ** math.ceil(math.log2(gigabytes)))


def _minutes(job: Job, launcher: LauncherConfig) -> int:
    slurm, limit = launcher.slurm, launcher.time_limit_s
    if job.seconds is not None:
        wanted = job.seconds / 60 * _MARGIN + _START_MINUTES
        wanted = next((step for step in _MINUTES if step >= wanted), slurm.max_minutes)
    elif limit is not None:
        wanted = limit * len(job.runs) / 60 + _START_MINUTES
    else:
        wanted = slurm.unknown_minutes
    return min(math.ceil(wanted), slurm.max_minutes)
