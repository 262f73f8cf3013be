"""Hands jobs over to SLURM, through submitit."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.launch import slurm_queue
from benchmarks.launch.planned import LaunchError
from benchmarks.launch.slurm_jobs import Job, Needs
from benchmarks.launch.slurm_task import JobWork
from benchmarks.paths import cache_dir, data_dir
from benchmarks.sections import LauncherConfig
from benchmarks.store import Store

_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
_REQUEUES = 10_000  # submitit's count of time limits: how long a run may take is not its business


def require() -> None:
    """Make sure that jobs can be submitted from here.

    Raises:
        LaunchError: with what is missing.
    """
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise LaunchError(
            f"launcher=slurm needs SLURM's commands; not on the PATH here: {', '.join(missing)}. "
            "Give the command on a login node of the cluster, or use launcher=local."
        )
    if find_spec("submitit") is None:
        raise LaunchError(
            "launcher=slurm needs the package submitit, which `make setup` installs "
            "(pip install submitit)."
        )


def submit(
    store: Store, needs: Needs, jobs: Sequence[Job], config: LauncherConfig, executor: str
) -> str:
    """Submit jobs as one array.

    Args:
        store: where their runs are.
        needs: what each of them asks for.
        jobs: at most as many as an array may have.
        config: of the launcher.
        executor: `module:function` that carries out a run.

    Returns:
        The scheduler's number of the array.

    Raises:
        LaunchError: SLURM does not take them.
        StoreWriteError: the store cannot be written.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    submission = slurm_queue.record(store.root, [[run.key for run in job.runs] for job in jobs])
    submitter = submitit.SlurmExecutor(
        folder=slurm_queue.logs(store.root), max_num_timeout=_REQUEUES, python=config.slurm.python
    )
    submitter.update_parameters(**_parameters(submission.name, needs, config))
    try:
        with submitter.batch():
            submitted = [
                submitter.submit(_work(store, job, needs, config, executor)) for job in jobs
            ]
    except (FailedJobError, FailedSubmissionError) as error:
        slurm_queue.mark_cancelled(store.root, submission)
        raise LaunchError(
            f"SLURM does not take the jobs: {str(error).strip()}. What they ask for is set under "
            f"launcher.slurm; here: {needs}."
        ) from error
    return str(submitted[0].job_id).partition("_")[0]


def _work(store: Store, job: Job, needs: Needs, config: LauncherConfig, executor: str) -> JobWork:
    return JobWork(
        root=store.root.absolute(),
        stale_seconds=store.stale_seconds,
        runs=job.runs,
        devices=needs.devices,
        threads=config.threads,
        max_attempts=config.max_attempts,
        time_limit=config.time_limit_s,
        arguments=tuple(sys.argv),
        executor=executor,
    )


def _parameters(name: str, needs: Needs, config: LauncherConfig) -> dict[str, Any]:
    """What submitit hands to `sbatch`."""
    slurm = config.slurm
    gpus = f"{slurm.gpu}:{needs.devices}" if slurm.gpu else needs.devices
    memory = None if needs.mem_gb is None else f"{round(needs.mem_gb * 1024)}M"
    asked = {
        "job_name": name,
        "time": needs.minutes,
        "cpus_per_task": needs.cpus,
        "gpus_per_node": gpus if needs.gpu else None,
        "mem": memory,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "array_parallelism": slurm.parallelism,
        "signal_delay_s": slurm.signal_s,
        "stderr_to_stdout": True,
        "setup": list(_setup(slurm.modules, slurm.setup)),
        # Without them, submitit and SLURM go by what the cluster sets.
        "additional_parameters": {"requeue": True},
    }
    return {key: value for key, value in asked.items() if value is not None}


def _setup(modules: Sequence[str], lines: Sequence[str]) -> Iterator[str]:
    """Shell lines that come before Python: the cluster's, then where everything is."""
    if modules:
        yield f"module load {shlex.join(modules)}"
    yield from lines
    project = Path(__file__).resolve().parents[2]
    yield f"export PYTHONPATH={shlex.quote(str(project))}${{PYTHONPATH:+:$PYTHONPATH}}"
    folders = {"CACHE_DIR": cache_dir(), "DATA_DIR": data_dir()}
    for name, folder in folders.items():
        if folder is not None:
            yield f"export {name}={shlex.quote(str(folder))}"
