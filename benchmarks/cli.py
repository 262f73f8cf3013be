"""The commands of the engine. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.launch.planned import LaunchError
from benchmarks.paths import results_dir
from benchmarks.store import Store, StoreError
from benchmarks.suggest import did_you_mean
from domains.contract import DataCorrupt, DataUnavailable

if TYPE_CHECKING:
    from benchmarks.plan import Planned

EXIT_DONE, EXIT_SOME_FAILED, EXIT_USAGE, EXIT_ENVIRONMENT = 0, 1, 2, 3

HELP = """\
usage: python run_all.py COMMAND [key=value ...]

  run       execute what is missing of a suite or a domain        run suite=quick
  plan      count, ids, what is done, estimated time              plan domain=timeseries seeds=5
  inspect   one run before it is paid for                         inspect dataset=Heartbeat
  status    what the store holds, by state; what is queued        status
  cancel    end the cluster's jobs for this store                 cancel
  report    tables, figures and one HTML page from the store      report
  data      find or fetch a data set and check it                 data JapaneseVowels
  doctor    is this machine ready?                                doctor
  speed     the table of speed and memory ratios                  speed

A comma sweeps: attention=standard,quest recipe.optimizer.lr=0.001,0.0003
Frequent keys: suite domain dataset attention seeds (how many) seed (which) protocol budget recipe
retry=diverged runs that outcome again. Folders: RESULTS_DIR, DATA_DIR, CACHE_DIR.
Exit codes: 0 all done, 1 some runs failed, 2 usage or configuration, 3 environment or data missing,
130 interrupted.
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command; the first argument names it.

    Returns:
        The exit code.
    """
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("help", [])
    commands = {
        "run": run,
        "plan": plan,
        "inspect": inspect,
        "status": status,
        "cancel": cancel,
        "data": data,
        "doctor": doctor,
        "speed": speed,
        "help": show_help,
        "--help": show_help,
        "-h": show_help,
    }
    if command not in commands:
        hint = did_you_mean(command, [*commands, "report"])
        return _fail(EXIT_USAGE, f"unknown command '{command}'.{hint}\n\n{HELP}")
    if {"--help", "-h"} & set(rest):
        return show_help(rest)
    try:
        return commands[command](rest)
    except ValueError as error:
        return _fail(EXIT_USAGE, str(error))
    except (DataCorrupt, DataUnavailable, LaunchError, StoreError) as error:
        return _fail(EXIT_ENVIRONMENT, str(error))


def show_help(arguments: Sequence[str]) -> int:
    """Print the commands."""
    print(HELP, end="")
    return EXIT_DONE


def run(arguments: Sequence[str]) -> int:
    """Execute the runs of a request that are not settled yet."""
    from benchmarks.launch.start import start

    runs, retry = _planned(arguments)
    return start(runs, Store(results_dir()), retry)


def plan(arguments: Sequence[str]) -> int:
    """Print the runs of a request, what is done, and what the rest will take."""
    from benchmarks.plan_table import print_plan

    runs, retry = _planned(arguments)
    print_plan(runs, Store(results_dir()), retry)
    return EXIT_DONE


def inspect(arguments: Sequence[str]) -> int:
    """Show one run before it is paid for; `--json` for programs."""
    from rich.console import Console

    from benchmarks import inspection
    from benchmarks.plan import expand, parse

    as_json = "--json" in arguments
    one_run = ["dataset=default", "attention=standard", "seed=0"]
    runs = expand(parse([*one_run, *(a for a in arguments if a != "--json")]))
    if len(runs) != 1:
        raise ValueError(f"inspect shows one run, this asks for {len(runs)}")
    found = inspection.inspect_run(runs[0])
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        inspection.print_inspection(found, Console(soft_wrap=True))
    return EXIT_DONE


def status(arguments: Sequence[str]) -> int:
    """Count the runs of the store by cell and state, without importing torch."""
    from benchmarks.status import print_status

    if arguments:
        raise ValueError(f"status takes no arguments, got {' '.join(arguments)}")
    print_status(Store(results_dir()))
    return EXIT_DONE


def cancel(arguments: Sequence[str]) -> int:
    """End the jobs that were submitted for this store, and no others."""
    from benchmarks.launch import slurm_queue

    if arguments:
        raise ValueError(f"cancel takes no arguments, got {' '.join(arguments)}")
    try:
        ended = slurm_queue.cancel(results_dir())
    except slurm_queue.QueueError as error:
        return _fail(EXIT_ENVIRONMENT, f"{error}. Give the command where SLURM's commands are.")
    print(f"{len(ended)} jobs cancelled" if ended else "no job of this store is in the queue")
    return EXIT_DONE


def data(arguments: Sequence[str]) -> int:
    """Find or fetch data sets, prepare and check them."""
    from benchmarks.data import prepare

    return prepare(arguments)


def doctor(arguments: Sequence[str]) -> int:
    """Check this machine."""
    from benchmarks.doctor import check

    return EXIT_DONE if check(results_dir()) else EXIT_ENVIRONMENT


def speed(arguments: Sequence[str]) -> int:
    """Measure speed and memory ratios."""
    from benchmarks.speed.cli import main as measure

    return measure(arguments)


def _planned(arguments: Sequence[str]) -> tuple[list[Planned], tuple[str, ...]]:
    from benchmarks.plan import expand, parse

    request = parse(arguments)
    return expand(request), request.retry


def _fail(code: int, message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
