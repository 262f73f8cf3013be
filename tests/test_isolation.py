"""The promises of conftest.py: no network, own folders, one thread, same random numbers."""

from __future__ import annotations

import os
import random
import socket
import urllib.request
from pathlib import Path

import pytest


def test_the_network_is_off() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"tried to reach 192\.0\.2\.1"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(pytest.fail.Exception, match=r"tried to reach example\.org"):
        urllib.request.urlopen("http://example.org/", timeout=1)


def test_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


@pytest.mark.parametrize("case", [0, 1])
def test_results_and_caches_are_the_tests_own(project_root: Path, case: int) -> None:
    for name in ("RESULTS_DIR", "CACHE_DIR"):
        folder = Path(os.environ[name])
        assert not folder.exists()
        assert project_root not in folder.parents
        folder.mkdir(parents=True)


def test_one_thread() -> None:
    import torch

    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("case", [0, 1])
def test_every_test_starts_with_the_same_random_numbers(case: int) -> None:
    import torch

    expected = torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.rand(1), expected)
    assert random.random() == random.Random(0).random()
