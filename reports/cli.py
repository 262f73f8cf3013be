"""The `report` command. Heavy imports wait until they are needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from reports.frame import Frame

EXIT_OK, EXIT_USAGE, EXIT_NOTHING = 0, 2, 3

FILTERS = ("domain", "dataset", "attention", "protocol", "recipe", "budget", "kind")
KEYS = ("results", "output", "from", *FILTERS)

HELP = """\
usage: python run_all.py report [key=value ...]

Tables, figures and one HTML page from the runs in the store.

  results=DIR    the store (default: RESULTS_DIR, else ./results)
  output=DIR     where to write (default: DIR/report inside the store)
  from=DIR       remake a report from its CSV files in DIR; needs output=
  domain= dataset= attention= protocol= recipe= budget= kind=
                 only these runs; several as a,b,c

Writes report.html, summary.md, results.csv (one row a run and metric), runs.csv (one row a run),
tables/ (md, tex, csv), figures/ (svg, png) and manifest.json. Grids of hyperparameters are studied
as a whole: their runs stand in grid_runs.csv, with grid_studies.csv and grid_curves.csv.

Exit codes: 0 written, 2 usage, 3 nothing to report yet or the place cannot be written.
"""


class UsageError(ValueError):
    """The command line cannot be understood."""


def main(argv: Sequence[str]) -> int:
    """Make a report.

    Args:
        argv: arguments after `report`.

    Returns:
        The exit code.
    """
    if any(argument in ("-h", "--help", "help") for argument in argv):
        print(HELP, end="")
        return EXIT_OK
    try:
        options = parse(argv)
    except UsageError as error:
        print(f"report: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _run(options)


def parse(argv: Sequence[str]) -> dict[str, str]:
    """Options by key.

    Raises:
        UsageError: an argument is no `key=value`, or its key is unknown or given twice.
    """
    options: dict[str, str] = {}
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key not in KEYS:
            raise UsageError(f"unknown {'key' if equals else 'argument'} '{key}'{_nearest(key)}")
        if not equals or not value:
            raise UsageError(f"'{key}' needs a value: {key}=...")
        if key in options:
            raise UsageError(f"'{key}' is given twice; several values as {key}=a,b")
        options[key] = value
    if "from" in options and "output" not in options:
        raise UsageError("from= needs output=, the folder to write")
    if "from" in options and "results" in options:
        raise UsageError("from= and results= exclude each other")
    return options


def _nearest(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, KEYS, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"{hint} (allowed: {', '.join(KEYS)}; see --help)"


def _run(options: dict[str, str], *, only_if_changed: bool = False) -> int:
    from reports.rows import ReportError

    root = Path(options.get("results") or os.environ.get("RESULTS_DIR") or "results")
    output = Path(options.get("output") or root / "report")
    filters = {name: frozenset(options[name].split(",")) for name in FILTERS if name in options}
    try:
        if "from" in options:
            from reports.export import read_csv

            frame = read_csv(Path(options["from"])).filtered(filters)
        else:
            from reports.frame import load

            frame = load(root, filters)
        for problem in frame.problems:
            print(f"report: left out {problem.path}: {problem.message}", file=sys.stderr)
        if not frame.rows:
            print(f"report: {_nothing(root, options, bool(frame.problems))}", file=sys.stderr)
            return EXIT_NOTHING
        if only_if_changed and _is_current(output, frame, options):
            print(f"report: {output / 'report.html'} (unchanged)")
            return EXIT_OK
        from reports.report import build
        from reports.write import contents, replace_folder

        replace_folder(output, contents(build(frame, _command(options))))
    except (ReportError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return EXIT_NOTHING
    done = sum(row.done for row in frame.rows)
    print(f"report over {done} finished of {len(frame.rows)} runs: {output / 'report.html'}")
    return EXIT_OK


def _is_current(output: Path, frame: Frame, options: dict[str, str]) -> bool:
    from reports.fingerprint import is_current

    return is_current(output, frame, _command(options))


def _nothing(root: Path, options: dict[str, str], damaged: bool) -> str:
    if damaged:
        return "no run could be read"
    if any(name in options for name in FILTERS):
        chosen = " ".join(f"{name}={options[name]}" for name in FILTERS if name in options)
        return f"no run in {options.get('from', root)} matches {chosen}"
    return f"nothing to report yet in {root}: run `make bench` first, or name a store with results="


def _command(options: dict[str, str]) -> str:
    """The command without the places of this machine, so that equal data give equal files."""
    chosen = [f"{name}={options[name]}" for name in FILTERS if name in options]
    return " ".join(["python run_all.py report", *chosen])


def print_summary(
    store_root: Path, console: Console, domain: str | None = None, dataset: str | None = None
) -> None:
    """Print one compact table a data set, after a finished run.

    Args:
        store_root: RESULTS_DIR.
        console: a rich console.
        domain: only this domain, several as `a,b`.
        dataset: only this data set, several as `a,b`.
    """
    from reports import terminal

    chosen = {"domain": domain, "dataset": dataset}
    filters = {name: frozenset(value.split(",")) for name, value in chosen.items() if value}
    terminal.print_summary(store_root, console, filters)


def refresh(domain: str | None = None, dataset: str | None = None) -> None:
    """Print the summary of a run's tables and write the store's report if runs were added.

    Args:
        domain: only its tables are printed, several as `a,b`; `all` and None mean every domain.
        dataset: the same for data sets; `default` and None mean every one.

    What goes wrong is printed: a finished run stays finished without a report.
    """
    from rich.console import Console

    root = Path(os.environ.get("RESULTS_DIR") or "results")
    print_summary(
        root,
        Console(),
        domain=None if domain == "all" else domain,
        dataset=None if dataset == "default" else dataset,
    )
    _run({}, only_if_changed=True)
