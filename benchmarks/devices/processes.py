"""The processes of a run on several devices: rank 0 starts the others and ends with them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.store import Run

_RANK = "LOCAL_RANK"  # Lightning takes processes that have it for started by somebody else
_WITNESS = "BENCHMARKS_WITNESS"
_CODE = "from benchmarks.devices.witness import main; main()"
_END_SECONDS = 30.0


def is_witness() -> bool:
    """Whether this process is another one than rank 0 of its run."""
    return _WITNESS in os.environ


@contextmanager
def world(devices: int, run: Run, config: Mapping[str, Any]) -> Iterator[None]:
    """Have the other processes of a run beside this one; with one device there are none.

    Args:
        devices: how many processes there are in all.
        run: what they work on.
        config: its stored configuration.
    """
    if devices == 1 or is_witness():
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(environment(devices))
        others = [stack.enter_context(_process(rank, run, config)) for rank in range(1, devices)]
        watched = threading.Event()
        stack.callback(watched.set)
        threading.Thread(target=_watch, args=(others, watched), daemon=True).start()
        yield
        watched.set()
        leave()
        for process in others:
            process.wait(_END_SECONDS)


@contextmanager
def environment(devices: int) -> Iterator[None]:
    """Where the processes meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {
        _RANK: "0",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(devices),
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        leave()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # Lightning takes some of them back
            else:
                os.environ[name] = value


@contextmanager
def _process(rank: int, run: Run, config: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Start one; it prints into the log of the run, and ends with it."""
    key = run.key
    given = {
        "path": str(run.path),
        "key": {name: getattr(key, name) for name in key.__dataclass_fields__},
        "config": config,
        "threads": torch.get_num_threads(),
    }
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE],
        stdin=subprocess.PIPE,
        env={**os.environ, _RANK: str(rank), _WITNESS: "1", "PYTHONPATH": path},
    )
    try:
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(given).encode())
        yield process
    finally:
        process.kill()
        process.wait()


def _watch(others: list[subprocess.Popen[bytes]], done: threading.Event) -> None:
    """End this process when another one dies: it would wait for it for half an hour."""
    while not done.wait(0.5):
        for process in others:
            if process.poll() and not done.is_set():
                print(f"a process of this run has died (exit code {process.returncode})")
                sys.stdout.flush()
                os._exit(1)


def leave() -> None:
    """Leave the other processes, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
