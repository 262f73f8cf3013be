"""Makes unexpected skips fail: a pytest plugin, on with `--strict-skips` or `CI=true`.

A skip is expected if `tests/allowed_skips.txt` names its reason. There, each line is
`KIND TEXT`, and a skip whose reason contains TEXT is allowed

* `anywhere`: always (hardware that most machines lack);
* `somewhere`: as long as one case of the same test ran (a variant that cannot do a thing);
* `without:NAME`: while the environment variable NAME is unset.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Allowance:
    """One line of the list: the kind of skip and the text that its reason contains."""

    kind: str
    text: str

    def covers(self, reason: str) -> bool:
        """Whether a skip with this reason is expected on this machine."""
        name = self.kind.removeprefix("without:")
        return self.text in reason and (name == self.kind or name not in os.environ)


def read_allowances(path: Path) -> list[Allowance]:
    """The lines of an allow-list; empty lines and those that start with `#` are for people.

    Raises:
        ValueError: a line has an unknown kind or no text.
    """
    allowances = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, _, text = line.strip().partition(" ")
        if not text or not (kind in ("anywhere", "somewhere") or kind.startswith("without:")):
            raise ValueError(
                f"{path}:{number}: `{line}` is not `KIND TEXT` with KIND one of "
                "anywhere, somewhere, without:NAME"
            )
        allowances.append(Allowance(kind, text.strip()))
    return allowances


class StrictSkips:
    """The plugin itself, registered only when strictness is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.allowances = read_allowances(path)
        self.ran: set[str] = set()
        self.skipped: defaultdict[str, set[str]] = defaultdict(set)

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Turn an unexpected skip into a failure."""
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = skip_reason(report)
        if not any(allowance.covers(reason) for allowance in self.allowances):
            report.outcome = "failed"
            report.longrepr = (
                f"unexpected skip: {reason}\n"
                f"(the reasons that may skip a test stand in {self.path.name})"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._judge(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self._judge(report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note per test, whatever its parameters, whether any case ran."""
        test = report.nodeid.partition("[")[0]
        if report.when == "call" and not report.skipped:
            self.ran.add(test)
        elif report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[test].add(skip_reason(report))

    def skipped_everywhere(self) -> dict[str, str]:
        """Tests of which no case ran although at least one should have, with a reason."""
        exempt = [allowance for allowance in self.allowances if allowance.kind != "somewhere"]
        found = {}
        for test, reasons in self.skipped.items():
            unexplained = [r for r in sorted(reasons) if not any(a.covers(r) for a in exempt)]
            if test not in self.ran and unexplained:
                found[test] = unexplained[0]
        return found

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped_everywhere() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, reason in self.skipped_everywhere().items():
            terminalreporter.write_line(f"SKIPPED EVERYWHERE {test}: {reason}", red=True)


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The text that was given to `pytest.skip` or to the skip mark."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="fail on skips that --allowed-skips does not expect (default where CI=true)",
    )
    parser.addoption(
        "--allowed-skips",
        type=Path,
        default=Path(__file__).with_name("allowed_skips.txt"),
        help="list of reasons for which a test may be skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--strict-skips"):
        config.pluginmanager.register(StrictSkips(config.getoption("--allowed-skips")))
