"""Prepared data: whole or not at all, built once, damage noticed."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from domains.common import prepared as prepared_module
from domains.common import whole_folder
from domains.common.files import cache_dir
from domains.common.prepared import prepared
from domains.contract import DataUnavailable


class Build:
    """A builder that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.calls += 1
        (folder / "numbers.bin").write_bytes(bytes(range(100)))
        return {"count": 100}


def test_a_folder_is_built_once_and_found_again():
    build = Build()
    first, second = prepared("set/one", build), prepared("set/one", build)
    assert build.calls == 1
    assert first == second
    assert second.facts == {"count": 100}
    assert second.folder == cache_dir() / "set" / "one"
    assert (second.folder / "numbers.bin").read_bytes() == bytes(range(100))


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "no manifest", "manifest"])
def test_damage_is_noticed_and_the_folder_built_again(damage, caplog):
    build = Build()
    folder = prepared("one", build).folder
    file, manifest = folder / "numbers.bin", folder / "manifest.json"
    match damage:
        case "truncated":
            file.write_bytes(file.read_bytes()[:50])
        case "changed":
            file.write_bytes(b"\0" * 100)
        case "missing":
            file.unlink()
        case "no manifest":
            manifest.unlink()
        case "manifest":
            manifest.write_text("[1, 2")
    again = prepared("one", build)
    assert build.calls == 2
    assert "is damaged" in caplog.text
    assert (again.folder / "numbers.bin").read_bytes() == bytes(range(100))
    assert visible(cache_dir()) == ["one"]


def test_a_build_that_fails_leaves_nothing():
    def fail(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        prepared("one", fail)
    assert visible(cache_dir()) == []
    assert prepared("one", Build()).facts == {"count": 100}


def test_what_a_killed_build_left_is_removed():
    left = cache_dir() / ".one.work-abc"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    prepared("one", Build())
    assert not left.exists()


def slow_build(folder: Path) -> dict[str, Any]:
    with (cache_dir() / "builds").open("a") as log:
        log.write("built\n")
    time.sleep(0.3)
    (folder / "numbers.bin").write_bytes(bytes(range(100)))
    return {"count": 100}


def ask(barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put((prepared("one", slow_build).folder / "numbers.bin").read_bytes())


def test_processes_that_ask_at_once_build_once():
    cache_dir().mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=ask, args=(barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert found == [bytes(range(100))] * 3
    assert (cache_dir() / "builds").read_text() == "built\n"


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """A CACHE_DIR that nobody, not even root, can write to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "file" / "cache"))


def test_without_a_writable_cache_a_temporary_folder_serves(no_cache, caplog):
    found = prepared("one", Build())
    assert (found.folder / "numbers.bin").read_bytes() == bytes(range(100))
    assert "CACHE_DIR cannot be used; one is prepared every time" in caplog.text
    folder = found.folder
    del found
    assert not folder.exists()


def test_a_full_disk_leaves_no_part_of_a_folder(monkeypatch):
    real = prepared_module._fill

    def full(folder: Path, build: Any) -> None:
        if folder.is_relative_to(cache_dir()):
            (folder / "half").write_text("half")
            raise OSError("no space left on device")
        real(folder, build)

    monkeypatch.setattr(prepared_module, "_fill", full)
    assert prepared("one", Build()).facts == {"count": 100}
    assert visible(cache_dir()) == []


def test_without_locks_the_first_to_finish_wins(monkeypatch, caplog):
    """Two processes on a file system without locks: the second finds the folder there."""

    def no_locks(*args: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(whole_folder.fcntl, "flock", no_locks)
    other = Build()

    def overtaken(folder: Path) -> dict[str, Any]:
        prepared("one", other)
        (folder / "numbers.bin").write_bytes(b"those of the second")
        return {"count": 19}

    assert prepared("one", overtaken).facts == {"count": 100}
    assert other.calls == 1
    assert "no locks available" in caplog.text
    assert visible(cache_dir()) == ["one"]


def test_others_may_read_what_was_prepared():
    """Symptom: a cache that a group shares was its maker's alone."""
    before = os.umask(0o022)
    try:
        folder = prepared("one", Build()).folder
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_full_disk_everywhere_is_named(monkeypatch):
    def full(folder: Path) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        DataUnavailable, match=r"one can be prepared neither in CACHE_DIR, now .*No"
    ):
        prepared("one", full)
    assert visible(cache_dir()) == []


def visible(folder: Path) -> list[str]:
    """Names in a folder but for locks."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")
