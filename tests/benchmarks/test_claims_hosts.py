"""Two hosts that share a folder, as over NFS: own paths, own clocks, no sight of one another."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.store import RunKey, Store

ROOT = Path(__file__).resolve().parents[2]
KEY = RunKey("toy", "parity", "quest", "0123456789ab", 0)

HOST = """
import os, sys, time
from benchmarks import claims
from benchmarks.store import RunKey, Store

name, root, skew = sys.argv[1], sys.argv[2], float(sys.argv[3])
clock = time.time
time.time = lambda: clock() + skew
claims.this_machine = lambda: name
store = Store(root, stale_seconds=1.2)
run = store.run(RunKey("toy", "parity", "quest", "0123456789ab", 0))
"""

CROWD = """
until, entered = time.monotonic() + float(sys.argv[4]), 0
while time.monotonic() < until:
    claim = run.claim()
    if claim is not None:
        with claim:
            os.close(os.open(run.path / "inside", os.O_CREAT | os.O_EXCL))
            entered += 1
            os.unlink(run.path / "inside")
print(entered)
"""

HOLD = """
claim = run.claim()
run.set_status("running")
print("held", flush=True)
time.sleep(60)
"""

WAIT = """
begin = time.monotonic()
print("waits", flush=True)
while (claim := run.claim()) is None:
    time.sleep(0.02)
print(time.monotonic() - begin, flush=True)
"""


def host(name: str, root: Path, skew: float, code: str, *more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOST + code, name, root, skew, *more]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """The store as either host has mounted it."""
    Store(tmp_path / "exported").prepare(KEY, {})
    first, second = tmp_path / "home", tmp_path / "net"
    for root in (first, second):
        root.symlink_to(tmp_path / "exported")
    return first, second


def test_hosts_whose_clocks_differ_never_hold_the_same_run(roots: tuple[Path, Path]) -> None:
    crowd = [
        host(f"host{n}", root, skew, CROWD, 2.0)
        for n, (root, skew) in enumerate(zip(roots, (-60.0, 60.0), strict=True))
    ]
    entered = [int(process.communicate(timeout=60)[0]) for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0]
    assert min(entered) > 5


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_a_silent_host_is_inherited_from_by_the_watchers_own_clock(
    roots: tuple[Path, Path], skew: float
) -> None:
    holder = host("home", roots[0], 0.0, HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    heir = host("net", roots[1], skew, WAIT)
    try:
        assert heir.stdout is not None
        assert heir.stdout.readline() == "waits\n"
        time.sleep(2.5)
        assert heir.poll() is None, "a host that is alive was taken for dead"
        assert Store(roots[1]).run(KEY).status()["state"] == "running"
        os.kill(holder.pid, signal.SIGSTOP)
        waited = float(heir.stdout.readline())
        assert waited > 2.5 + 1.0, "inherited before it was silent long enough"
    finally:
        for process in (holder, heir):
            process.kill()
            process.communicate()


def test_the_store_locks_no_files() -> None:
    sources = (ROOT / "benchmarks").rglob("*.py")
    found = [path.name for path in sources if re.search(r"\b(flock|lockf)\(", path.read_text())]
    assert not found
