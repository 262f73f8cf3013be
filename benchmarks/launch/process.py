"""The parent's view of a worker process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.launch.perform import Offer
from benchmarks.launch.slots import Share
from benchmarks.launch.worker import Settings

_HINTS = {
    signal.SIGKILL: "often out of memory",
    signal.SIGSEGV: "a crash in native code; the stack is in log.txt",
    signal.SIGABRT: "native code gave up; see log.txt",
}


@contextmanager
def _without(number: signal.Signals) -> Iterator[None]:
    """Keep a signal from the processes that are started in here, and from theirs.

    A cluster sends its notice to all processes of a job. The launcher obeys it for all of them; a
    worker would die of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess:
    """A spawned worker and what it is doing.

    It lives in its own session, so that Ctrl-C reaches the parent alone, which asks the workers to
    stop; and so that a worker's own child processes end with it.

    Attributes:
        ready: whether it has finished its imports.
        offer: what it works on.
        label: that in words for people.
        started: when that began (monotonic), None before the claim.
        progress: what it has last reported of it.
        killed_late: whether it was killed for overrunning its time limit.
        share: what it has of the machine.
    """

    def __init__(self, settings: Settings, share: Share) -> None:
        self.share = share
        self.ready = False
        self.offer: Offer | None = None
        self.label = ""
        self.started: float | None = None
        self.progress: Mapping[str, Any] = {}
        self.killed_late = False
        self._group_ended = False
        ours, theirs = socket.socketpair()
        threads = str(settings.threads)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        if share.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(share.visible)
        code = f"from benchmarks.launch.worker import main; main({theirs.fileno()})"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        with _without(signal.SIGUSR2):
            self._process = subprocess.Popen(
                # -P: a module of the current folder must not come before the standard library's.
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        theirs.close()
        self.connection = Connection(ours.detach())
        self._send(settings)

    def give(self, offer: Offer, label: str) -> None:
        """Hand over a run, or a group of them."""
        self.offer, self.label = offer, label
        self._send(offer)

    def take_back(self) -> None:
        """It does not work on its offer any more."""
        self.offer, self.started, self.progress = None, None, {}

    def stop(self) -> None:
        """Ask it to end its work at the next batch, and itself after that."""
        self._send("stop")
        self._send(None)

    def messages(self) -> list[tuple[Any, ...]]:
        """What it has said since the last call."""
        said: list[tuple[Any, ...]] = []
        with suppress(EOFError, OSError):
            while self.connection.poll():
                said.append(self.connection.recv())
        return said

    def has_ended(self) -> bool:
        """Whether the process is gone; its children are then ended, too."""
        if self._process.poll() is None:
            return False
        self._end_group()
        return True

    def kill(self) -> None:
        """End it at once."""
        self._end_group()
        self._process.wait()

    def close(self, grace: float) -> None:
        """Let it end, or end it after `grace` seconds."""
        self.stop()
        deadline = time.monotonic() + grace
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.kill()
        self.connection.close()
        self._output.close()

    def obituary(self) -> str:
        """How the process ended."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        hint = _HINTS.get(signal.Signals(-code))
        return f"signal {-code}{f': {hint}' if hint else ''}"

    def last_words(self) -> str:
        """The end of what it printed outside its runs."""
        self._output.seek(0)
        return self._output.read()[-4000:].decode(errors="replace").strip()

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it is gone: `has_ended` tells
            self.connection.send(message)

    def _end_group(self) -> None:
        if self._group_ended:  # its number may belong to somebody else by now
            return
        self._group_ended = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
