"""From planned runs to a launcher: checks the data first, then hands over what is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from benchmarks import grouping, loggers
from benchmarks.estimate import Estimates
from benchmarks.hardware import gpu_count, uses_cuda
from benchmarks.launch import slurm_submit
from benchmarks.launch.local import LocalPool
from benchmarks.launch.planned import PlannedRun
from benchmarks.launch.slurm import SlurmLauncher
from benchmarks.plan import Planned, pending, state_of
from benchmarks.store import Store
from domains.contract import DataUnavailable
from domains.registry import load as load_domain


def start(runs: Sequence[Planned], store: Store, retry: Sequence[str]) -> int:
    """Execute the runs that have no final outcome yet.

    Runs whose data are not here are left out, and named; the others are executed.

    Returns:
        0 if every run is done, or submitted where nobody waits for it; 1 if some ended otherwise
        or wait, 3 if data were missing, 130 if the user interrupted.

    Raises:
        ValueError: the logger asked for is not installed.
        StoreError: the store cannot be written.
        LaunchError: workers cannot be started.
    """
    console = Console(highlight=False, soft_wrap=True)
    for logger in {planned.config.logger.name for planned in runs}:
        loggers.require(logger)
    if any(planned.launcher.name == "slurm" for planned in runs):
        slurm_submit.require()
    todo = pending(runs, store, retry)
    console.print(f"{len(runs)} runs, {len(runs) - len(todo)} settled, {len(todo)} to do")
    todo, missing = _with_data(todo, console)
    if together := grouping.in_words(todo):
        console.print(together)
    if todo:
        first = todo[0]
        summary = _launcher(todo, store, retry).run(grouped(todo, store))
        if first.launcher.name == "slurm" and not first.launcher.slurm.wait:
            return 3 if missing else 0
        if summary.interrupted:
            return 130
    if missing:
        return 3
    states = {state_of(store.run(planned.key)) for planned in runs}
    return 0 if states <= {"done", "skipped"} else 1


def grouped(todo: Sequence[Planned], store: Store) -> list[PlannedRun]:
    """Runs as a launcher takes them, with what is known of them and their groups."""
    estimates = Estimates(store)
    return [
        PlannedRun(
            planned.key,
            planned.config.to_dict(),
            estimates.seconds(planned.key, planned.config),
            group=str(number) if len(members) > 1 else None,
            devices=planned.config.trainer.devices,
            memory=estimates.memory(planned.key),
        )
        for number, members in enumerate(grouping.groups(todo), start=1)
        for planned in members
    ]


def _with_data(todo: Sequence[Planned], console: Console) -> tuple[list[Planned], bool]:
    problems: dict[tuple[str, str], str | None] = {}
    for planned in todo:
        task = (planned.key.domain, planned.key.dataset)
        if planned.config.synthetic or task in problems:
            continue
        try:
            load_domain(planned.key.domain).require_data(planned.config)
            problems[task] = None
        except DataUnavailable as error:
            problems[task] = str(error)
            console.print(f"[red]{planned.key.dataset}: no data, its runs are left out.[/red]")
            console.print(str(error), markup=False)
    ready = [p for p in todo if not problems.get((p.key.domain, p.key.dataset))]
    return ready, any(problems.values())


def _launcher(
    todo: Sequence[Planned], store: Store, retry: Sequence[str]
) -> LocalPool | SlurmLauncher:
    launcher, accelerator = todo[0].launcher, todo[0].config.trainer.accelerator
    if launcher.name == "slurm":
        return SlurmLauncher(store, launcher, accelerator, retry=retry)
    workers = launcher.workers
    gpus: tuple[str, ...] = ()
    if uses_cuda(accelerator):
        gpus = gpus_for(launcher.local.devices, max(one.config.trainer.devices for one in todo))
        # Runs that share a GPU would slow each other down and may not fit into its memory.
        workers = len(gpus) if workers == "auto" else workers
    elif workers == "auto":
        workers = max(1, len(os.sched_getaffinity(0)) // launcher.threads)
    return LocalPool(
        store,
        workers=workers,
        threads=launcher.threads,
        max_attempts=launcher.max_attempts,
        time_limit=launcher.time_limit_s,
        retry=retry,
        gpus=gpus,
    )


def gpus_for(devices: str | Sequence[int], needed: int) -> tuple[str, ...]:
    """The GPUs that a pool may use, as CUDA_VISIBLE_DEVICES names them.

    Args:
        devices: `launcher.local.devices`.
        needed: the largest `trainer.devices` of the runs.

    Raises:
        ValueError: there are too few for that run.
    """
    if devices != "auto":
        numbers = list(map(str, devices))
    elif seen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        numbers = seen.split(",")
    else:
        numbers = list(map(str, range(gpu_count())))
    if len(numbers) < needed:
        raise ValueError(
            f"trainer.devices={needed} must be at most {len(numbers)}: launcher.local.devices "
            f"offers {', '.join(numbers) or 'none'}"
        )
    return tuple(numbers)
