"""Entry point of the suite: `python run_all.py help` lists the commands."""

from __future__ import annotations

import sys

from benchmarks import cli as benchmarks_cli


def main(arguments: list[str]) -> int:
    """Run a command of the engine or the report; a finished run ends in a report.

    Returns:
        The exit code: 0 done, 1 some runs failed, 2 usage or configuration, 3 environment.
    """
    command = arguments[0] if arguments else "help"
    if command == "report":
        from reports import cli as reports_cli

        return reports_cli.main(arguments[1:])
    code = benchmarks_cli.main(arguments)
    if command == "run" and code in (benchmarks_cli.EXIT_DONE, benchmarks_cli.EXIT_SOME_FAILED):
        from reports import cli as reports_cli

        reports_cli.refresh()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
