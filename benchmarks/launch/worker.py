"""A worker of the local launcher: a process that carries out one offer after the other.

Its imports are paid once. It talks to its parent over a socket.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.files import StoreWriteError
from benchmarks.launch.perform import GroupExecutor, Offer, alone, perform
from benchmarks.states import RunEnded
from benchmarks.store import Store

ORPHAN_GRACE_SECONDS = 10.0
_PROGRESS_SECONDS = 0.2


@dataclass(frozen=True)
class Settings:
    """What a worker is told once.

    Attributes:
        root: the store.
        stale_seconds: of the store.
        executor: `module:function` for one run.
        group_executor: `module:function` for several that are trained together.
        threads: CPU threads of a run.
        arguments: command line of the program, for the provenance.
    """

    root: Path
    stale_seconds: float
    executor: str
    group_executor: str
    threads: int
    arguments: tuple[str, ...]


class _Channel:
    """The worker's end of the socket: offers come in by a thread, messages go out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reported = 0.0
        self.offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self.stop = threading.Event()

    def listen(self) -> None:
        """Receive until the parent says goodbye, or is gone."""
        try:
            while (message := self._connection.recv()) is not None:
                if message == "stop":
                    self.stop.set()
                else:
                    self.offers.put(message)
        except (EOFError, OSError):
            # The parent has died. Nobody would see what becomes of this process: end soon, at the
            # next batch if there is one, so that the next runner can take over.
            self.end()
            timer = threading.Timer(ORPHAN_GRACE_SECONDS, os._exit, (1,))
            timer.daemon = True
            timer.start()
        self.offers.put(None)

    def end(self) -> None:
        """Ask the present run to stop, and take no other."""
        self.stop.set()
        self.offers.put(None)

    def send(self, *message: Any) -> None:
        """Tell the parent; if it is gone, the listening thread knows as well."""
        with suppress(OSError):
            self._connection.send(message)

    def progress(self, event: dict[str, Any]) -> None:
        """Report at most a few times a second, and rather not at all than wait for the parent."""
        now = time.monotonic()
        writable = select.select([], [self._connection], [], 0)[1]
        if now - self._reported >= _PROGRESS_SECONDS and writable:
            self._reported = now
            self.send("progress", json.loads(json.dumps(event, default=_plain)))


def _plain(value: Any) -> float | str:
    """A number of some library, which the parent need not import, as Python's own."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def main(descriptor: int) -> None:
    """Loop of a worker process of the local launcher."""
    connection = Connection(descriptor)
    settings: Settings = connection.recv()
    channel = _Channel(connection)
    sys.argv[:] = settings.arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a killed run has then said all it had to say
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()  # a crash in native code leaves its Python stack in the run's log
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: channel.end())
    try:
        executor = alone(_load(settings.executor, settings.threads))
    except Exception:
        channel.send("unusable", traceback.format_exc())
        return
    threading.Thread(target=channel.listen, name="listener", daemon=True).start()

    def together(*arguments: Any) -> Sequence[RunEnded | None]:
        # Imported when the first group comes: an import that fails is then an outcome of its runs.
        execute: GroupExecutor = _load(settings.group_executor, settings.threads)
        return execute(*arguments)

    store = Store(settings.root, stale_seconds=settings.stale_seconds)
    channel.send("ready")
    while (offer := channel.offers.get()) is not None and not channel.stop.is_set():
        try:
            outcomes = perform(
                store,
                offer,
                executor if len(offer.members) == 1 else together,
                started=lambda attempt, keys: channel.send("started", attempt, keys),
                progress=channel.progress,
                stopped=channel.stop.is_set,
            )
        except StoreWriteError as error:
            channel.send("store", str(error))
            return
        channel.send("ended", outcomes)


def _load(name: str, threads: int) -> Any:
    module, _, function = name.partition(":")
    found = getattr(import_module(module), function)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    return found
