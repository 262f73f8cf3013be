"""What every test can count on: no network, no writes into the checkout, one thread, seeds."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["tests.strict_skips"]

# Read by the numerical libraries when they load, and inherited by the processes that tests start:
# the test workers share the cores, and results do not depend on how many there are.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Make property tests repeatable and keep their example data base out of the checkout."""
    from hypothesis import settings

    settings.register_profile("suite", database=None, deadline=None, derandomize=True)
    settings.load_profile("suite")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Fail at once, uncatchably for the code under test, when a test reaches for the network.

    Processes that a test starts are not covered.
    """

    def is_local(address: Any) -> bool:
        if not isinstance(address, tuple):  # the path of a Unix socket
            return True
        host = address[0]
        if host in ("", "localhost", None):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def refuse(address: Any) -> None:
        pytest.fail(f"a test tried to reach {address} over the network; tests run without one")

    real_connect, real_connect_ex = socket.socket.connect, socket.socket.connect_ex
    real_getaddrinfo = socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> None:
        return real_connect(self, address) if is_local(address) else refuse(address)

    def connect_ex(self: socket.socket, address: Any) -> int | None:
        return real_connect_ex(self, address) if is_local(address) else refuse(address)

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        local = is_local((host,)) or host == socket.gethostname()
        return real_getaddrinfo(host, *args, **kwargs) if local else refuse(host)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setattr(socket.socket, "connect_ex", connect_ex)
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("folders")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _isolation(_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and caches of a test go to folders of its own, made when something is written."""
    folder = next(_folders)
    monkeypatch.setenv("RESULTS_DIR", str(folder / "results"))
    monkeypatch.setenv("CACHE_DIR", str(folder / "cache"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """The same random numbers for a test whichever tests ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real sample data, or a skip that names what to set."""
    value = os.environ.get("DATA_DIR")
    if not value:
        pytest.skip("DATA_DIR is not set: it names the folder with the real sample data")
    return Path(value)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout that is being tested."""
    return Path(__file__).resolve().parent.parent
