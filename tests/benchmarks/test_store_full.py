"""A store that cannot be written: a clear message, nothing half-written, nothing lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks import files
from benchmarks.store import Run, RunKey, Store, StoreWriteError

KEY = RunKey("toy", "parity", "quest", "0123456789ab", 0)
BIG = {"metrics": {f"test/{number}": 0.1 for number in range(10_000)}}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the command mount")
    if done.returncode:
        pytest.skip(f"needs the right to mount a small file system: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", 0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def ready_to_end(store: Store) -> Run:
    run = store.prepare(KEY, {})
    run.set_status("running")
    run.append_metrics({"phase": "main", "epoch": 0, "step": 1, "values": {}})
    return run


def writes(run: Run) -> list[Callable[[], object]]:
    return [
        lambda: run.write_result(BIG),
        lambda: run.set_status("interrupted"),
        lambda: run.append_metrics({"values": BIG}),
        lambda: run.claim(),
    ]


def test_full_disk(small_disk: Path) -> None:
    run = ready_to_end(Store(small_disk))
    fill(small_disk)
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    for write in writes(run):
        with pytest.raises(StoreWriteError, match=r"No space left.*0\.0 MB free.*RESULTS_DIR"):
            write()
    assert run.status()["state"] == "running"
    assert run.result() is None
    assert len(run.metrics()) == 1
    assert set(run.path.iterdir()) == before.keys(), "temporary files were left"
    with pytest.raises(StoreWriteError, match="No space left"):
        Store(small_disk).check_writable()
    with pytest.raises(StoreWriteError, match="No space left"):
        Store(small_disk).prepare(RunKey("toy", "parity", "quest", "0", 1), {})

    (small_disk / "filler").unlink()  # and on it goes
    run.append_metrics({"phase": "main", "epoch": 1, "step": 2, "values": {}})
    assert len(run.metrics()) == 2
    run.write_result(BIG)
    run.set_status("done")
    assert run.result() == {"schema": 1, **BIG}


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_every_step_of_a_write_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run = ready_to_end(Store(tmp_path))
    run.write_result({"metrics": {}})
    before = {path: path.read_bytes() for path in run.path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, full)
        with pytest.raises(StoreWriteError, match="No space left"):
            run.set_status("done")
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before
    assert run.result() is None


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready_to_end(Store(tmp_path))
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    run.write_result(BIG)
    run.set_status("done")
    assert run.result() == {"schema": 1, **BIG}


def test_a_place_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreWriteError, match=r"cannot write .*file/store.*Not a directory"):
        Store(tmp_path / "file" / "store").check_writable()


def test_read_only_store(small_disk: Path) -> None:
    run = ready_to_end(Store(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreWriteError, match=r"Read-only file system.*RESULTS_DIR"):
        Store(small_disk).prepare(KEY, {})
    for write in writes(run):
        with pytest.raises(StoreWriteError, match="Read-only"):
            write()
    assert run.status()["state"] == "running"
    assert len(run.metrics()) == 1
