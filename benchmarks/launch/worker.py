"""A worker: a process that carries out one run after the other, so that imports are paid once.

:func:`perform` takes one run from its claim to its final state and is all that a launcher needs;
:func:`main` is the loop of a worker of the local launcher, which talks to its parent over a socket.
"""

from __future__ import annotations

import ctypes
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.claims import ClaimLostError, Holder
from benchmarks.files import StoreWriteError, full_disk, writing
from benchmarks.states import FINAL, OUTCOMES, RunEnded, RunKey
from benchmarks.store import CorruptFileError, Run, Store, StoreError

Progress = Callable[[dict[str, Any]], None]
ShouldStop = Callable[[], str | None]
Executor = Callable[[Run, dict[str, Any], Progress, ShouldStop], None]

ORPHAN_GRACE_SECONDS = 10.0
_PROGRESS_SECONDS = 0.2
_TRACEBACK_LENGTH = 4000


@dataclass(frozen=True)
class Settings:
    """What a worker is told once.

    Attributes:
        root: the store.
        stale_seconds: of the store.
        executor: `module:function`.
        threads: CPU threads of a run.
        arguments: command line of the program, for the provenance.
    """

    root: Path
    stale_seconds: float
    executor: str
    threads: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Offer:
    """A run to be carried out.

    Attributes:
        key: which run.
        config: handed to the executor.
        attempts: how many there had been when it was planned; an outcome of a later one counts.
        presumed_dead: a holder of its claim that the launcher knows to be dead.
        time_limit: seconds after which it is asked to stop.
    """

    key: RunKey
    config: dict[str, Any]
    attempts: int = 0
    presumed_dead: Holder | None = None
    time_limit: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How an offer ended.

    Attributes:
        state: the run's state; None if another runner is working on it.
        reason: one line for people.
        executed: whether this worker did it, rather than finding it done.
        seconds: how long it took.
    """

    state: str | None
    reason: str | None = None
    executed: bool = False
    seconds: float = 0.0


def perform(
    run: Run,
    offer: Offer,
    executor: Executor,
    *,
    started: Callable[[int], None],
    progress: Progress,
    stopped: Callable[[], bool],
) -> Outcome:
    """Claim a run, carry it out, and bring it to a state, whatever happens inside.

    Args:
        run: the run.
        offer: what is known about it.
        executor: does the work.
        started: told the number of the attempt once the run is claimed.
        progress: told whatever the executor reports.
        stopped: whether the user, the launcher or the machine asks to stop.

    Raises:
        StoreWriteError: the store cannot be written. The run can be continued later.
    """
    claim = run.claim(presumed_dead=offer.presumed_dead)
    if claim is None:
        return Outcome(None)
    with claim:
        try:
            before = run.status()
        except CorruptFileError:
            return Outcome(None)  # the launcher repairs it and offers it again
        if is_settled(before, offer.attempts):
            return Outcome(before["state"], before["reason"])
        begin = time.monotonic()

        def should_stop() -> str | None:
            if claim.lost or stopped():
                return "interrupted"
            if offer.time_limit is not None and time.monotonic() - begin > offer.time_limit:
                return "timeout"
            return None

        try:
            run.set_status("running", host=os.uname().nodename, pid=os.getpid())
            attempt = before["attempts"] + 1
            started(attempt)
            with captured(run.path / "log.txt", f"attempt {attempt}, process {os.getpid()}"):
                ended = _call(executor, run, offer.config, progress, should_stop)
                seconds = time.monotonic() - begin
                ended.details["seconds"] = round(seconds, 3)
                run.set_status(ended.state, ended.reason, **ended.details)
                with suppress(OSError):
                    print(f"=== {ended.state}{': ' if ended.reason else ''}{ended.reason or ''}")
        except ClaimLostError:
            return Outcome(None)
        except StoreWriteError:
            with suppress(StoreError):
                run.set_status("interrupted", "the store could not be written")
            raise
        return Outcome(ended.state, ended.reason, executed=True, seconds=seconds)


def is_settled(status: Mapping[str, Any], attempts: int) -> bool:
    """Whether a run needs no (more) work by somebody who planned it after so many attempts."""
    state = status["state"]
    return state in FINAL or (state in OUTCOMES and status["attempts"] > attempts)


@dataclass
class _Ended:
    state: str
    reason: str | None
    details: dict[str, Any]


def _call(
    executor: Executor,
    run: Run,
    config: dict[str, Any],
    progress: Progress,
    should_stop: ShouldStop,
) -> _Ended:
    try:
        executor(run, config, progress, should_stop)
    except RunEnded as ended:
        return _Ended(ended.state, ended.reason, dict(ended.details))
    except (ClaimLostError, StoreWriteError):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "SIGTERMException":  # Lightning's answer to a scheduler's signal
            return _Ended("interrupted", "terminated (SIGTERM)", {})
        traceback.print_exc()
        if (full := full_disk(error, run.path / "checkpoints")) is not None:
            raise full from error
        state = "oom" if _is_out_of_memory(error) else "failed"
        reason = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        tail = "".join(traceback.format_exception(error))[-_TRACEBACK_LENGTH:]
        return _Ended(state, reason, {"traceback": tail})
    if not (run.path / "result.json").exists():
        return _Ended("failed", "the executor returned without having written a result", {})
    return _Ended("done", None, {})


def _is_out_of_memory(error: BaseException) -> bool:
    # By name: torch's class is not at hand without importing torch.
    if any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


@contextmanager
def captured(path: Path, title: str) -> Iterator[None]:
    """Append what the process prints, native libraries included, to a file under a header line."""
    _flush()
    with writing(path):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        with suppress(OSError):  # of a full disk, whatever needs to be stored will tell
            print(f"=== {datetime.now().astimezone().isoformat(timespec='seconds')} {title}")
        yield
    finally:
        _flush()
        for descriptor, copy in saved:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(log)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk: the log may end early, the run need not
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what native code has printed and its C library still holds


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
        executor = _load(settings)
    except Exception:
        channel.send("unusable", traceback.format_exc())
        return
    threading.Thread(target=channel.listen, name="listener", daemon=True).start()
    store = Store(settings.root, stale_seconds=settings.stale_seconds)
    channel.send("ready")
    while (offer := channel.offers.get()) is not None and not channel.stop.is_set():
        try:
            outcome = perform(
                store.run(offer.key),
                offer,
                executor,
                started=lambda attempt: channel.send("started", attempt),
                progress=channel.progress,
                stopped=channel.stop.is_set,
            )
        except StoreWriteError as error:
            channel.send("store", str(error))
            return
        channel.send("ended", outcome)


def _load(settings: Settings) -> Executor:
    module, _, function = settings.executor.partition(":")
    executor: Executor = getattr(import_module(module), function)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(settings.threads)
    return executor
