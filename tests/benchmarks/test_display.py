"""What users see: live lines in a terminal, plain ones in a pipe, honest times."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.launch.display import (
    LiveDisplay,
    PlainDisplay,
    Totals,
    duration,
    headline,
    make_display,
)
from benchmarks.launch.estimate import Estimator, InProgress, Left, Waiting
from benchmarks.launch.planned import labels
from benchmarks.states import RunKey

LABEL = "JapaneseVowels · quest · seed 2"
EVENT = {
    "phase": "main",
    "epoch": 3,
    "max_epochs": 50,
    "metric": "val/accuracy",
    "value": 93.125,
    "seconds_per_step": 0.0114,
    "seconds_left": 83.0,
}

PROGRAM = """
import json, sys, time
from benchmarks.launch.display import Totals, make_display
from benchmarks.launch.estimate import Left

display = make_display()
label, event = json.loads(sys.argv[1])
display.open(Totals(30))
display.started(label, 1)
display.totals(Totals(30, {"done": 7, "failed": 1}, running=1, left=Left(300)))
time.sleep(0.3)  # not one report has come
display.progress(label, event)
time.sleep(0.5)
display.ended(label, "done", "test/accuracy 98.1 %", 17.3)
display.close()
"""


def shown(stdout: int, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, json.dumps([LABEL, EVENT])]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", **environment}
    return subprocess.Popen(command, stdout=stdout, env=environment)


def on_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    process = shown(theirs, **environment)
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux tells the end of a terminal
            break
        if not piece:
            break
        output += piece
    os.close(ours)
    assert process.wait() == 0
    return output.decode()


def test_a_terminal_shows_a_line_for_each_run_and_the_whole() -> None:
    output = on_terminal()
    assert "\x1b[" in output
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert re.search(rf"{LABEL} +main 3/50 +val/accuracy 93\.12 +0\.011 s/step +83 s left", text), (
        text
    )
    assert "7/30 done, 1 failed, 1 running, about 5 min left" in text
    assert f"done        {LABEL}  test/accuracy 98.1 %  17 s" in text


def test_a_pipe_gets_plain_lines() -> None:
    process = shown(subprocess.PIPE)
    output = process.communicate()[0].decode()
    assert output.splitlines() == [
        "0/30 done",
        f"start       {LABEL}",
        f"done        {LABEL}  test/accuracy 98.1 %  17 s  "
        "[7/30 done, 1 failed, 1 running, about 5 min left]",
    ]


def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in on_terminal(TERM="dumb")


def test_choice_of_display(tmp_path: Path) -> None:
    assert isinstance(make_display(io.StringIO()), PlainDisplay)
    with (tmp_path / "file").open("w") as file:
        assert isinstance(make_display(file), PlainDisplay)


def test_live_lines_bear_whatever_an_executor_reports() -> None:
    display = LiveDisplay(io.StringIO())
    display.open(Totals(1))
    display.started(LABEL, 1)
    for event in ({}, {"metric": "x", "value": "many"}, {"epoch": 1}, {"value": 1.0}):
        display.progress(LABEL, event)
        display._render()
    display.progress("unknown", EVENT)
    display.ended(LABEL, "failed", "[red]not markup[/red]", 0.0)
    display.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (9.96, "10 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3599, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (200_000, "2 d 07 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_labels_are_short_and_unique() -> None:
    keys = [
        RunKey("timeseries", "JapaneseVowels", "quest", "0123456789ab", 2),
        RunKey("timeseries", "BasicMotions", "quest", "0123456789ab", 0),
        RunKey("timeseries", "BasicMotions", "quest", "fedcba987654", 0),
    ]
    assert list(labels(keys).values()) == [
        LABEL,
        "BasicMotions · quest · seed 0 · 012345",
        "BasicMotions · quest · seed 0 · fedcba",
    ]


def test_headline() -> None:
    primary = {"name": "test/accuracy", "unit": "%"}
    assert headline({"primary_metric": primary, "metrics": {"test/accuracy": 98.108}}) == (
        "test/accuracy 98.11 %"
    )
    assert headline({"primary_metric": primary, "metrics": {}}) == ""
    assert headline({}) == ""


SHORT, LONG = ("toy",), ("graph",)


def left(
    estimator: Estimator,
    waiting: Sequence[float | None] = (),
    running: Sequence[InProgress] = (),
    workers: float = 1,
) -> float | None:
    found = estimator.left([Waiting(SHORT, estimate) for estimate in waiting], running, workers)
    return None if found is None else found.seconds


def test_time_left_is_learnt_from_what_was_measured() -> None:
    estimator = Estimator()
    assert left(estimator, [None, None], workers=2) is None
    assert left(estimator, [10.0, 10.0], workers=2) == 10.0
    estimator.record(SHORT, 10.0, 20.0)  # this machine is half as fast as was thought
    assert left(estimator, [10.0, 10.0]) == 40.0
    assert left(estimator, [None]) == 20.0
    assert left(estimator, running=[InProgress(SHORT, 10.0, 5.0, None)]) == 15.0
    assert left(estimator, running=[InProgress(SHORT, 10.0, 5.0, 3.0)]) == 3.0
    assert left(estimator, running=[InProgress(SHORT, 10.0, 50.0, None)]) == 0.0
    assert left(estimator, running=[InProgress(SHORT, 30.0, 5.0, None, runs=3)]) == 55.0
    assert left(estimator, running=[InProgress(SHORT, None, 5.0, None, runs=3)]) == 55.0
    assert left(estimator, [1.0, 1.0, 30.0], workers=3) == 60.0  # the longest decides
    assert left(estimator) is None


def test_a_run_says_nothing_about_runs_of_another_kind() -> None:
    estimator = Estimator()
    estimator.record(LONG, None, 3600.0)
    assert left(estimator, [None]) is None
    both = estimator.left([Waiting(LONG, None), Waiting(SHORT, None)], [], workers=1)
    assert both == Left(3600.0, complete=False)
    estimator.record(SHORT, None, 2.0)
    both = estimator.left([Waiting(LONG, None), Waiting(SHORT, None)], [], workers=1)
    assert both == Left(3602.0)


def test_what_a_first_run_expects_of_itself_is_expected_of_its_kind() -> None:
    """75 runs that are trained together are half way through after a minute: two minutes in all."""
    at_work = InProgress(SHORT, None, 60.0, 60.0, runs=75)
    found = Estimator().left([Waiting(SHORT, None)] * 75, [at_work], workers=1)
    assert found is not None
    assert found.complete
    assert found.seconds == pytest.approx(180.0)


def test_a_lower_bound_is_called_one() -> None:
    assert Totals(3, left=Left(300.0)).words() == "0/3 done, about 5 min left"
    assert Totals(3, left=Left(300.0, complete=False)).words() == "0/3 done, at least 5 min left"
