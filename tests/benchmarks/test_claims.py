"""Claims between real processes: exactly one holder, dead holders are inherited from, at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import claims
from benchmarks.claims import ClaimLostError, Observer, acquire, holder_of
from benchmarks.store import RunKey, Store

ROUNDS = 200
KEY = RunKey("toy", "parity", "quest", "0123456789ab", 0)

RACER = """
import mmap, os, sys
from pathlib import Path
from benchmarks.claims import Observer, acquire

root, rounds, me = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
observer, held = Observer(), []
with open(root / "at", "r+b") as file:
    at = mmap.mmap(file.fileno(), 2)  # the round that either racer has come to
for number in range(rounds):
    at[me] = number + 1
    while at[1 - me] < number + 1:  # each round starts when both are there
        os.sched_yield()
    claim = acquire(root / str(number) / "claim", observer)
    if claim is not None:
        held.append(claim)
        print(number)
"""

HOLDER = """
import sys, time
from benchmarks.store import RunKey, Store

run = Store(sys.argv[1], stale_seconds=0.6).run(RunKey("toy", "parity", "quest", "0123456789ab", 0))
claim = run.claim()
run.set_status("running")
print("held", flush=True)
time.sleep(60)
"""

CROWD = """
import os, sys, time
from pathlib import Path
from benchmarks.claims import Observer, acquire

folder, until = Path(sys.argv[1]), float(sys.argv[2])
observer, entered = Observer(), 0
while time.monotonic() < until:
    claim = acquire(folder / "claim", observer)
    if claim is not None:
        with claim:
            os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
            entered += 1
            os.unlink(folder / "inside")
print(entered)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def plant(folder: Path, pid: int, started: str = "1", machine: str | None = None) -> Path:
    """A claim as another process would have left it."""
    folder.mkdir()
    file = folder / f"0123456789abcdef-{machine or claims.this_machine()}-{pid}-{started}.json"
    file.write_bytes(b"{}")
    return file


@pytest.mark.parametrize("planted", [False, True], ids=["free", "dead holder"])
def test_of_two_racing_claimants_exactly_one_wins(tmp_path: Path, planted: bool) -> None:
    pid = dead_pid()
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
        if planted:
            plant(tmp_path / str(number) / "claim", pid)
    (tmp_path / "at").write_bytes(bytes(2))
    racers = [python(RACER, tmp_path, ROUNDS, me) for me in range(2)]
    won = [list(map(int, racer.communicate(timeout=60)[0].split())) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert sorted(won[0] + won[1]) == list(range(ROUNDS))


def test_never_two_inside(tmp_path: Path) -> None:
    until = time.monotonic() + 2.5
    crowd = [python(CROWD, tmp_path, until) for _ in range(3)]
    entered = [int(process.communicate(timeout=60)[0]) for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0, 0]
    assert sum(entered) > 50
    assert sorted(os.listdir(tmp_path)) == []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, stale_seconds=0.24)  # a heartbeat every 20 ms
    store.prepare(KEY, {})
    return store


@pytest.fixture
def holder(store: Store) -> Iterator[subprocess.Popen[str]]:
    process = python(HOLDER, store.root)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_killed_holder_is_inherited_from_at_once(
    store: Store, holder: subprocess.Popen[str]
) -> None:
    run = store.run(KEY)
    assert run.claim() is None
    watched = run.holder()
    assert watched is not None
    assert not run.is_dead(watched)
    holder.send_signal(signal.SIGKILL)
    # Not waited for: a zombie is as dead as a process that is gone.
    deadline = time.monotonic() + 5
    while (claim := run.claim()) is None:
        assert time.monotonic() < deadline
    with claim:
        assert store.run(KEY).claim() is None
        run.set_status("running")
    assert run.status()["attempts"] == 2
    assert run.is_dead(watched)
    assert run.holder() is None


def test_a_suspended_holder_is_inherited_from_and_stops(
    store: Store, holder: subprocess.Popen[str]
) -> None:
    observer = Observer(stale_seconds=1.0)
    folder = KEY.path(store.root) / "claim"
    for _ in range(30):  # beats keep the claim, however short the patience
        assert acquire(folder, observer) is None
        time.sleep(0.05)
    holder.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    while (claim := acquire(folder, observer)) is None:
        time.sleep(0.05)
    assert 0.8 < time.monotonic() - start < 5
    time.sleep(0.1)  # our own first beat
    ours = holder_of(folder)
    assert ours is not None
    holder.send_signal(signal.SIGCONT)
    for _ in range(30):  # several of its beats
        time.sleep(0.01)
        seen = holder_of(folder)
        assert seen is not None
        assert seen.name == ours.name
        assert json.loads(seen.content)["pid"] == os.getpid(), "a lost claim was written to"
    claim.check()
    claim.release()
    assert not folder.exists()


def test_a_lost_claim_is_noticed_and_writes_are_refused(store: Store) -> None:
    run = store.run(KEY)
    claim = run.claim()
    assert claim is not None
    heir = Store(store.root).run(KEY).claim(presumed_dead=run.holder())
    assert heir is not None
    with heir:
        deadline = time.monotonic() + 5
        while not claim.lost:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for write in (
            lambda: run.set_status("running"),
            lambda: run.append_metrics({}),
            lambda: run.write_result({}),
        ):
            with pytest.raises(ClaimLostError, match="taken over"):
                write()
        claim.release()
        with pytest.raises(ClaimLostError):
            run.set_status("running")
        heir.check()
        assert run.status()["state"] == "planned"


def test_presumed_dead_holder_that_beat_since_is_left_alone(store: Store) -> None:
    run = store.run(KEY)
    claim = run.claim()
    assert claim is not None
    with claim:
        seen = run.holder()
        time.sleep(0.2)
        assert Store(store.root).run(KEY).claim(presumed_dead=seen) is None


def test_process_numbers_that_were_given_out_again(tmp_path: Path) -> None:
    plant(tmp_path / "claim", os.getpid(), started="1")  # this process started later
    assert acquire(tmp_path / "claim", Observer()) is not None


def test_of_another_machine_only_the_heartbeat_is_judged(tmp_path: Path) -> None:
    folder = tmp_path / "claim"
    file = plant(folder, dead_pid(), machine="elsewhere")
    observer = Observer(stale_seconds=0.2)
    assert acquire(folder, observer) is None
    time.sleep(0.1)
    file.write_bytes(b"half-writt")  # any change is a sign of life
    assert acquire(folder, observer) is None
    time.sleep(0.15)
    assert acquire(folder, observer) is None
    time.sleep(0.15)
    claim = acquire(folder, observer)
    assert claim is not None
    claim.release()


def test_an_empty_folder_left_by_a_release_is_free(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    assert acquire(tmp_path / "claim", Observer()) is not None
