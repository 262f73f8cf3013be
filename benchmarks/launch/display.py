"""What the user sees while runs are carried out: live lines in a terminal, plain ones elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol

from benchmarks.launch.estimate import Left

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOURS = {
    "done": "green",
    "diverged": "yellow",
    "skipped": "dim",
    "interrupted": "yellow",
    "again": "yellow",
}


@dataclass(frozen=True)
class Totals:
    """Where the whole stands.

    Attributes:
        total: runs asked for.
        states: how many have ended in each state.
        running: how many this program works on now.
        elsewhere: how many other runners hold at this moment.
        queued: how many wait in the queue of a cluster.
        left: until all are through; None while nothing is known.
    """

    total: int
    states: Mapping[str, int] = field(default_factory=dict)
    running: int = 0
    elsewhere: int = 0
    queued: int = 0
    left: Left | None = None

    def words(self) -> str:
        """One line: `7/30 done, 1 failed, 2 running, about 5 min left`."""
        states = dict(self.states)
        parts = [f"{states.pop('done', 0)}/{self.total} done"]
        parts += [f"{count} {state}" for state, count in sorted(states.items())]
        if self.running:
            parts.append(f"{self.running} running")
        if self.elsewhere:
            parts.append(f"{self.elsewhere} in other runners")
        if self.queued:
            parts.append(f"{self.queued} queued")
        if self.left is not None:
            word = "about" if self.left.complete else "at least"
            parts.append(f"{word} {duration(self.left.seconds)} left")
        return ", ".join(parts)


class Display(Protocol):
    """Told what happens by a launcher. Labels are unique among the runs of one call."""

    def open(self, totals: Totals) -> None:
        """Work begins."""

    def started(self, label: str, attempt: int) -> None:
        """A run has begun."""

    def progress(self, label: str, event: Mapping[str, Any]) -> None:
        """A run reports phase, epoch, max_epochs, metric, value, seconds_per_step, seconds_left."""

    def ended(self, label: str, state: str, note: str, seconds: float) -> None:
        """A run has ended; the note is its result or the reason."""

    def totals(self, totals: Totals) -> None:
        """The whole has moved on."""

    def notice(self, text: str) -> None:
        """Something the user should know."""

    def close(self) -> None:
        """Work has ended."""


def duration(seconds: float) -> str:
    """Two leading units at most: `0.4 s`, `17 s`, `3 min`, `1 h 05 min`, `2 d 03 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def headline(result: Mapping[str, Any]) -> str:
    """Name and value of a result's primary metric, as far as the result tells."""
    primary = result.get("primary_metric") or {}
    value = (result.get("metrics") or {}).get(primary.get("name"))
    if not isinstance(value, int | float):
        return ""
    return f"{primary['name']} {value:.4g} {primary.get('unit') or ''}".strip()


def make_display(stream: IO[str] | None = None) -> LiveDisplay | PlainDisplay:
    """Live lines if `stream` (standard output) is a terminal that can move its cursor."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveDisplay(stream)
    return PlainDisplay(stream)


class PlainDisplay:
    """A line when a run starts and when it ends: for pipes, files and log viewers."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._totals = Totals(0)

    def open(self, totals: Totals) -> None:
        self._totals = totals
        self.notice(totals.words())

    def started(self, label: str, attempt: int) -> None:
        again = f"  (attempt {attempt})" if attempt > 1 else ""
        self.notice(f"{'start':<11} {label}{again}")

    def progress(self, label: str, event: Mapping[str, Any]) -> None:
        pass

    def ended(self, label: str, state: str, note: str, seconds: float) -> None:
        self.notice(f"{_ended(label, state, note, seconds)}  [{self._totals.words()}]")

    def totals(self, totals: Totals) -> None:
        self._totals = totals

    def notice(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A line for each running run and one for the whole, redrawn; what has ended scrolls above."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._running: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._totals = Totals(0)
        self._console = Console(file=stream, highlight=False)
        self._live = Live(  # draws once right here: the state above must be there
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def open(self, totals: Totals) -> None:
        self._totals = totals
        self._live.start()

    def started(self, label: str, attempt: int) -> None:
        self._running[label] = (time.monotonic(), {})

    def progress(self, label: str, event: Mapping[str, Any]) -> None:
        if label in self._running:
            self._running[label] = (self._running[label][0], event)

    def ended(self, label: str, state: str, note: str, seconds: float) -> None:
        self._running.pop(label, None)
        text = _ended(label, state, note, seconds)
        self._console.print(text, style=_COLOURS.get(state, "red"), markup=False)

    def totals(self, totals: Totals) -> None:
        self._totals = totals

    def notice(self, text: str) -> None:
        self._console.print(text, style="bold", markup=False)

    def close(self) -> None:
        self._running.clear()
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis")
        for _ in range(4):
            table.add_column(no_wrap=True)
        # A copy: this is called from the thread that redraws.
        for label, (since, event) in list(self._running.items()):
            table.add_row(label, *_columns(event, time.monotonic() - since))
        return Group(table, Text(self._totals.words(), style="bold"))


def _columns(event: Mapping[str, Any], seconds: float) -> tuple[str, str, str, str]:
    """Phase and epoch, metric, pace, time left; what the executor has not told stays empty."""
    phase = str(event.get("phase") or "")
    if event.get("epoch") is not None:
        phase += f" {event['epoch']}" + (
            f"/{event['max_epochs']}" if event.get("max_epochs") else ""
        )
    metric = ""
    if event.get("metric") and isinstance(event.get("value"), int | float):
        metric = f"{event['metric']} {event['value']:.4g}"
    pace = ""
    if isinstance(event.get("seconds_per_step"), int | float):
        pace = f"{event['seconds_per_step']:.2g} s/step"
    left = event.get("seconds_left")
    clock = f"{duration(seconds)} so far" if left is None else f"{duration(left)} left"
    return phase.strip(), metric, pace, clock


def _ended(label: str, state: str, note: str, seconds: float) -> str:
    took = f"  {duration(seconds)}" if seconds else ""
    return f"{state:<11} {label}{f'  {note}' if note else ''}{took}"
