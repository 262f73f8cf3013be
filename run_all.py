"""Entry point of the suite: `python run_all.py help` lists the commands."""

from __future__ import annotations

import sys

INTERRUPTED = 130
NOT_SET_UP = 3


def main(arguments: list[str]) -> int:
    """Run a command of the engine or the report; a finished run ends in a report.

    Returns:
        The exit code: 0 done, 1 some runs failed, 2 usage or configuration, 3 environment,
        130 interrupted.
    """
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        print("\nStopped. What is done is kept; the same command continues.", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("attention", "benchmarks", "reports"):
            raise
        print(
            f"error: the package {error.name} is missing from {sys.executable}. `make setup` makes "
            "an environment; then use `.venv/bin/python run_all.py …` or the make targets.",
            file=sys.stderr,
        )
        return NOT_SET_UP


def _dispatch(arguments: list[str]) -> int:
    from benchmarks import cli as benchmarks_cli
    from reports import cli as reports_cli

    command = arguments[0] if arguments else "help"
    if command == "report":
        return reports_cli.main(arguments[1:])
    code = benchmarks_cli.main(arguments)
    if {"-h", "--help"} & set(arguments):
        return code
    if command == "run" and code in (benchmarks_cli.EXIT_DONE, benchmarks_cli.EXIT_SOME_FAILED):
        given = dict(argument.split("=", 1) for argument in arguments[1:])
        reports_cli.refresh(domain=given.get("domain"), dataset=given.get("dataset"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
