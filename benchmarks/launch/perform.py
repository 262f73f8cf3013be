"""Carries out one run, or several that are trained together, from their claims to their states.

All that a launcher needs in the process that computes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.claims import Claim, ClaimLostError, Holder
from benchmarks.files import StoreWriteError, for_each, full_disk, writing
from benchmarks.states import FINAL, OUTCOMES, RunEnded, RunKey
from benchmarks.store import CorruptFileError, Run, Store, StoreError

Progress = Callable[[dict[str, Any]], None]
ShouldStop = Callable[[], str | None]
Executor = Callable[[Run, dict[str, Any], Progress, ShouldStop], None]
GroupExecutor = Callable[
    [Sequence[Run], Sequence[dict[str, Any]], Progress, ShouldStop], Sequence[RunEnded | None]
]
"""Like an `Executor`, for several runs; returns how each ended, None where it wrote a result."""

_TRACEBACK_LENGTH = 4000


@dataclass(frozen=True)
class Member:
    """A run that is offered.

    Attributes:
        key: which run.
        config: handed to the executor.
        attempts: how many there had been when it was planned; an outcome of a later one counts.
        presumed_dead: a holder of its claim that the launcher knows to be dead.
    """

    key: RunKey
    config: dict[str, Any]
    attempts: int = 0
    presumed_dead: Holder | None = None


@dataclass(frozen=True)
class Offer:
    """What a worker is asked to carry out.

    Attributes:
        members: one run, or those to be trained together.
        time_limit: seconds after which the whole is asked to stop.
    """

    members: tuple[Member, ...]
    time_limit: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run that was offered ended.

    Attributes:
        key: which run.
        state: its state; None if another runner is working on it.
        reason: one line for people.
        executed: whether this worker did it, rather than finding it done.
        seconds: how long it took: its share, if it was trained with others.
    """

    key: RunKey
    state: str | None
    reason: str | None = None
    executed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class _Held:
    """A claimed run."""

    run: Run
    config: dict[str, Any]
    claim: Claim
    attempt: int


@dataclass(frozen=True)
class _Ended:
    state: str
    reason: str | None
    details: Mapping[str, Any]


def alone(executor: Executor) -> GroupExecutor:
    """An executor of one run in the form of one for several."""

    def execute(
        runs: Sequence[Run],
        configs: Sequence[dict[str, Any]],
        progress: Progress,
        should_stop: ShouldStop,
    ) -> Sequence[None]:
        (run,), (config,) = runs, configs
        executor(run, config, progress, should_stop)
        return [None]

    return execute


def perform(
    store: Store,
    offer: Offer,
    execute: GroupExecutor,
    *,
    started: Callable[[int, Sequence[RunKey]], None],
    progress: Progress,
    stopped: Callable[[], bool],
) -> list[Outcome]:
    """Claim runs, carry them out together, and bring each to a state, whatever happens inside.

    Those that another runner holds, or has brought to an end, drop out; the others go on.

    Args:
        store: where the runs are.
        offer: what is known about them.
        execute: does the work.
        started: told the number of the attempt and which runs have been claimed, if any.
        progress: told whatever the executor reports.
        stopped: whether the user, the launcher or the machine asks to stop.

    Returns:
        The outcome of each run that was offered.

    Raises:
        StoreWriteError: the store cannot be written. The runs can be continued later.
    """
    outcomes: list[Outcome] = []
    with ExitStack() as claims:
        held: list[_Held] = []
        for member in offer.members:
            found = _claimed(store.run(member.key), member)
            if isinstance(found, Outcome):
                outcomes.append(found)
            else:
                claims.enter_context(found.claim)
                held.append(found)
        if held:
            outcomes += _carry_out(held, offer.time_limit, execute, started, progress, stopped)
    return outcomes


def is_settled(status: Mapping[str, Any], attempts: int) -> bool:
    """Whether a run needs no (more) work by somebody who planned it after so many attempts."""
    state = status["state"]
    return state in FINAL or (state in OUTCOMES and status["attempts"] > attempts)


def _claimed(run: Run, member: Member) -> _Held | Outcome:
    claim = run.claim(presumed_dead=member.presumed_dead)
    if claim is None:
        return Outcome(member.key, None)
    try:
        status = run.status()
    except CorruptFileError:
        claim.release()
        return Outcome(member.key, None)  # the launcher repairs it and offers it again
    if is_settled(status, member.attempts):
        claim.release()
        return Outcome(member.key, status["state"], status["reason"])
    return _Held(run, member.config, claim, status["attempts"] + 1)


def _carry_out(
    held: Sequence[_Held],
    time_limit: float | None,
    execute: GroupExecutor,
    started: Callable[[int, Sequence[RunKey]], None],
    progress: Progress,
    stopped: Callable[[], bool],
) -> list[Outcome]:
    begin = time.monotonic()

    def should_stop() -> str | None:
        if stopped() or all(one.claim.lost for one in held):
            return "interrupted"
        if time_limit is not None and time.monotonic() - begin > time_limit:
            return "timeout"
        return None

    def conclude(pair: tuple[_Held, _Ended]) -> Outcome:
        one, ended = pair
        try:
            one.claim.check()  # the state may be another runner's
            one.run.set_status(
                ended.state, ended.reason, **{**ended.details, "seconds": round(seconds, 3)}
            )
        except ClaimLostError:
            return Outcome(one.run.key, None)
        return Outcome(one.run.key, ended.state, ended.reason, executed=True, seconds=seconds)

    lost = {one.run.key for one, mine in zip(held, for_each(_begin, held), strict=True) if not mine}
    outcomes = [Outcome(key, None) for key in lost]
    held = [one for one in held if one.run.key not in lost]
    if not held:
        return outcomes
    try:
        started(max(one.attempt for one in held), [one.run.key for one in held])
        with _logged(held):
            ended = _call(execute, held, progress, should_stop)
            seconds = (time.monotonic() - begin) / len(held)
            outcomes += for_each(conclude, list(zip(held, ended, strict=True)))
            with suppress(OSError):
                for state, reason in sorted({(one.state, one.reason or "") for one in ended}):
                    print(f"=== {state}{': ' if reason else ''}{reason}")
    except StoreWriteError:
        for one in held:
            with suppress(StoreError):
                if one.run.status()["state"] == "running":
                    one.run.set_status("interrupted", "the store could not be written")
        raise
    return outcomes


def _begin(one: _Held) -> bool:
    """Set a claimed run running; False if the claim is lost."""
    try:
        one.run.set_status("running", host=os.uname().nodename, pid=os.getpid())
    except ClaimLostError:
        return False
    return True


def _call(
    execute: GroupExecutor, held: Sequence[_Held], progress: Progress, should_stop: ShouldStop
) -> list[_Ended]:
    """How each run ended."""
    runs, configs = [one.run for one in held], [one.config for one in held]
    try:
        endings = execute(runs, configs, progress, should_stop)
    except RunEnded as ended:
        return [_Ended(ended.state, ended.reason, ended.details)] * len(held)
    except StoreWriteError:
        raise
    except ClaimLostError as error:
        return [_Ended("interrupted", str(error), {})] * len(held)
    except (Exception, SystemExit) as error:
        return [_failed(error, held)] * len(held)
    return [_ending(run, ending) for run, ending in zip(runs, endings, strict=True)]


def _ending(run: Run, ended: RunEnded | None) -> _Ended:
    if ended is not None:
        return _Ended(ended.state, ended.reason, ended.details)
    if not (run.path / "result.json").exists():
        return _Ended("failed", "the executor returned without having written a result", {})
    return _Ended("done", None, {})


def _failed(error: BaseException, held: Sequence[_Held]) -> _Ended:
    if type(error).__name__ == "SIGTERMException":  # Lightning's answer to a scheduler's signal
        return _Ended("interrupted", "terminated (SIGTERM)", {})
    traceback.print_exc()
    if (full := full_disk(error, held[0].run.path / "checkpoints")) is not None:
        raise full from error
    state = "oom" if _is_out_of_memory(error) else "failed"
    reason = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    if len(held) > 1:
        reason += (
            f" (in a group of {len(held)} runs trained together; "
            "launcher.together=false trains each by itself)"
        )
    tail = "".join(traceback.format_exception(error))[-_TRACEBACK_LENGTH:]
    return _Ended(state, reason, {"traceback": tail})


def _is_out_of_memory(error: BaseException) -> bool:
    # By name: torch's class is not at hand without importing torch.
    if any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


@contextmanager
def _logged(held: Sequence[_Held]) -> Iterator[None]:
    """Keep what is printed: in the log of the first run; those of the others tell where."""
    first, *others = held
    title = f"process {os.getpid()}"
    for one in others:
        where = os.path.relpath(first.run.path / "log.txt", one.run.path)
        line = f"attempt {one.attempt}, {title}, one of {len(held)} runs together: see {where}"
        with writing(one.run.path / "log.txt"), open(one.run.path / "log.txt", "ab") as log:
            log.write(f"{_header(line)}\n".encode())
    if others:
        title += f", {len(held)} runs together"
    with captured(first.run.path / "log.txt", f"attempt {first.attempt}, {title}"):
        yield


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
            print(_header(title))
        yield
    finally:
        _flush()
        for descriptor, copy in saved:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(log)


def _header(title: str) -> str:
    return f"=== {datetime.now().astimezone().isoformat(timespec='seconds')} {title}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk: the log may end early, the run need not
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what native code has printed and its C library still holds
