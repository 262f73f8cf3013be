"""Downloads: verified, whole or not at all, once."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path

import pytest

from domains.common import fetching
from domains.common.files import cache_dir
from domains.contract import DataCorrupt, DataUnavailable

URL = "https://example.org/set.zip"


def test_a_download_is_verified(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    fetching.download(source.as_uri(), target, hashlib.sha256(b"content").hexdigest())
    assert target.read_bytes() == b"content"
    with pytest.raises(DataCorrupt, match=r"has SHA-256 ed7002b4.*, expected 00"):
        fetching.download(source.as_uri(), target, "00")


def test_a_name_look_up_that_hangs_is_not_waited_for(monkeypatch):
    finished = threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        finished.wait()
        raise OSError("name look-up failed")

    monkeypatch.setattr(socket, "create_connection", hang)
    start = time.perf_counter()
    assert not fetching.reachable("https://example.org/file", timeout=0.1)
    finished.set()
    assert time.perf_counter() - start < 1.0


def fetch(folder: Path) -> None:
    (folder / "file").write_text("content")


def supply(reason: str) -> str:
    return f"cannot be fetched ({reason}); put it here"


def test_a_folder_is_fetched_once():
    target = cache_dir() / "set"
    fetching.fetch_folder(URL, target, fetch, supply)
    assert (target / "file").read_text() == "content"
    fetching.fetch_folder(URL, target, lambda folder: pytest.fail("fetched again"), supply)


@pytest.mark.parametrize("error", [OSError("no route to host"), TimeoutError("timed out")])
def test_a_fetch_that_fails_leaves_nothing_and_says_how_to_supply(error):
    def fail(folder: Path) -> None:
        fetch(folder)
        raise error

    with pytest.raises(DataUnavailable, match=rf"\({URL}: {error}\); put it here"):
        fetching.fetch_folder(URL, cache_dir() / "set", fail, supply)
    assert [path.name for path in cache_dir().iterdir()] == [".set.lock"]


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataUnavailable, match=r"CACHE_DIR, now .*file/cache, cannot be written"):
        fetching.fetch_folder(URL, cache_dir() / "set", fetch, supply)
