"""Who works on a run: claims by exclusive creation, with a heartbeat, without file locks.

A claim is a folder `claim/` in the run's folder with one file in it, whose name is unique and tells
the process that holds it. Each step is one rename, so it needs no `flock` and holds on network
file systems too:

- *acquire*: rename a prepared folder, with its file inside, to `claim/`. A rename onto a folder
  that is not empty fails, so exactly one of several claimants wins.
- *release*: unlink the own file. Its name is unique, so nobody else's claim can be hit.
- *take over* from a dead holder: rename its file to the own name. The source vanishes with the
  first rename, so exactly one of several heirs wins, and is seen as the holder from that instant;
  if it dies right then, it can be inherited from in turn.

The holder rewrites its file every few seconds with a growing counter. Others judge by their own
monotonic clock how long it has not changed: clocks of two machines are never compared. On the same
machine a holder whose process is gone is dead at once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from benchmarks.files import StoreError, write_all, writing

STALE_SECONDS = 60.0
_BEATS_BEFORE_STALE = 12
_CLOCKS_DIFFER_SECONDS = 120.0
_LENGTH = 256
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


class ClaimLostError(StoreError):
    """Another runner took the run over while this process was not seen alive; stop working on it.

    Nothing may be written any more: the run belongs to somebody else.
    """


@dataclass(frozen=True)
class Holder:
    """What another process can see of a claim.

    Attributes:
        name: the claim's file: random token, machine, process number and its start.
        content: the file as it was read; changes with each heartbeat.
    """

    name: str
    content: bytes

    def process_is_gone(self) -> bool:
        """Whether the holder ran on this machine and its process has ended."""
        parts = self.name.removesuffix(".json").split("-")
        if len(parts) != 4 or parts[1] != this_machine():
            return False
        return not _same_process_lives(int(parts[2]), parts[3])


class Observer:
    """Remembers since when each claim has not changed, by this process's monotonic clock."""

    def __init__(self, stale_seconds: float = STALE_SECONDS) -> None:
        self.stale_seconds = stale_seconds
        self._seen: dict[Path, tuple[Holder, float]] = {}

    def is_dead(self, folder: Path, holder: Holder) -> bool:
        """Whether the holder's process has ended or has not been heard of for too long."""
        if holder.process_is_gone():
            return True
        now = time.monotonic()
        known, since = self._seen.get(folder, (None, now))
        if known != holder:
            self._seen[folder] = (holder, now)
            return False
        return now - since >= self.stale_seconds


class Claim:
    """A held claim; a context manager that releases it. A thread keeps its heart beating."""

    def __init__(self, folder: Path, name: str, beat_seconds: float) -> None:
        self._file = folder / name
        self._folder = folder
        self._beat_seconds = beat_seconds
        self._lost = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claim heartbeat", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether somebody has taken the run over, as far as the last heartbeat saw."""
        return self._lost.is_set()

    @property
    def released(self) -> bool:
        """Whether the claim was given back."""
        return self._released.is_set()

    def check(self) -> None:
        """Make sure, by looking, that the claim is still held.

        Raises:
            ClaimLostError: it is not.
        """
        if self._lost.is_set() or not self._file.exists():
            self._lost.set()
            raise ClaimLostError(
                f"{self._folder.parent} was taken over by another runner because this one showed "
                "no sign of life; the other one continues it."
            )

    def release(self) -> None:
        """Give the run back; harmless when the claim was lost or released before."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        with suppress(OSError):
            os.unlink(self._file)
        with suppress(OSError):  # not empty: somebody has claimed the run since
            os.rmdir(self._folder)

    def _beat(self) -> None:
        beat = 0
        while True:
            beat += 1
            try:
                # Opened by name and never created: after a takeover the name is gone, so a process
                # that was suspended cannot revive its claim. Closing makes a network file system
                # send the bytes.
                descriptor = os.open(self._file, os.O_WRONLY)
                try:
                    write_all(descriptor, _content(beat))
                finally:
                    os.close(descriptor)
            except (FileNotFoundError, NotADirectoryError):
                self._lost.set()
                return
            except OSError:
                pass  # a server that is away for a moment: a missed beat is no loss
            if self._released.wait(self._beat_seconds):
                return

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def holder_of(folder: Path) -> Holder | None:
    """Who holds the claim, or None if it is free."""
    try:
        for name in os.listdir(folder):
            if name.endswith(".json"):
                return Holder(name, (folder / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        pass  # released between the two looks
    return None


def looks_dead(folder: Path, holder: Holder, stale_seconds: float = STALE_SECONDS) -> bool:
    """Whether a holder has most likely ended, at a single look: for displays, not for decisions.

    Unlike an `Observer`, this compares the time of the last heartbeat with the clock, and allows
    for machines that disagree by minutes.
    """
    if holder.process_is_gone():
        return True
    try:
        beat = (folder / holder.name).stat().st_mtime
    except OSError:
        return False  # released or taken over just now
    return time.time() - beat > stale_seconds + _CLOCKS_DIFFER_SECONDS


def acquire(
    folder: Path,
    observer: Observer,
    *,
    presumed_dead: Holder | None = None,
) -> Claim | None:
    """Claim a run, or inherit the claim of a dead holder.

    Args:
        folder: the claim's folder; the folder above it exists.
        observer: judges whether a holder is dead, and says how fast the heart must beat.
        presumed_dead: a holder that the caller has watched long enough to know that it is dead.

    Returns:
        The claim, or None if somebody alive holds it or was faster.

    Raises:
        StoreWriteError: the store cannot be written.
    """
    pid = os.getpid()
    name = f"{os.urandom(8).hex()}-{this_machine()}-{pid}-{_started(pid)}.json"
    holder = holder_of(folder)
    if holder is None:
        won = _create(folder, name)
    elif holder == presumed_dead or observer.is_dead(folder, holder):
        won = _inherit(folder / holder.name, folder / name)
    else:
        won = False
    return Claim(folder, name, observer.stale_seconds / _BEATS_BEFORE_STALE) if won else None


def _create(folder: Path, name: str) -> bool:
    prepared = folder.with_name(f".{folder.name}-{name}")
    with writing(folder):
        try:
            os.mkdir(prepared)
            descriptor = os.open(prepared / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                write_all(descriptor, _content(0))
            finally:
                os.close(descriptor)
            with suppress(OSError):  # some file systems refuse to rename onto an empty folder
                os.rmdir(folder)
            os.rename(prepared, folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(prepared / name)
            with suppress(OSError):
                os.rmdir(prepared)
            # A network file system may repeat a request whose answer was lost: look, not guess.
            if (folder / name).exists():
                return True
            if error.errno in _TAKEN:
                return False
            raise
    return True


def _inherit(dead: Path, own: Path) -> bool:
    with writing(own):
        try:
            os.rename(dead, own)
        except FileNotFoundError:
            return own.exists()  # an answer may have been lost, as above
    return True


def _content(beat: int) -> bytes:
    """A claim's file: of constant length, so that rewriting it in place never leaves a tail."""
    value = {"beat": beat, "host": os.uname().nodename, "pid": os.getpid()}
    return json.dumps(value).encode().ljust(_LENGTH)


@cache
def this_machine() -> str:
    """Names the set of processes that this one can see: this boot of this machine or container."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty if it has ended or cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat[stat.rindex(")") + 2 :].split()  # the name before may hold spaces
    return "" if state in "ZX" else fields[18]


def _same_process_lives(pid: int, started: str) -> bool:
    if started:  # told apart from a later process with the same number
        return _started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
