"""Ctrl-C and SIGTERM, noted while a launcher works and obeyed where it is convenient."""

from __future__ import annotations

import signal
import threading
from types import TracebackType


class Signals:
    """Context manager that counts requests to stop instead of dying of them.

    Outside the main thread, where Python allows no handlers, it counts nothing.

    Attributes:
        count: how often the user, or the system, has asked to stop.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, *_: object) -> None:
        self.count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given to us
