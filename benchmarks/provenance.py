"""How a result was made: source, command, packages, machine, numerics. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = 1
_HERE = Path(__file__).resolve()
_SOURCES = {".csv", ".j2", ".py", ".toml", ".txt", ".yaml", ".yml"}
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "SLURM_JOB_ID",
)


def collect(*, device: str, threads: int) -> dict[str, Any]:
    """Everything needed to make the result again, as plain JSON values.

    The command is that of the program that was started, also when asked by one of its workers.
    Numerics flags are those of torch if the caller has imported it.

    Args:
        device: where the run computes, as torch names it (`cpu`, `cuda:0`).
        threads: CPU threads that the run may use.
    """
    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "source": source(_HERE),
        "python": platform.python_version(),
        "packages": _packages(),
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory(),
        },
        "device": device,
        "device_name": _device_name(device),
        "threads": threads,
        "numerics": _numerics(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


@cache
def source(file: Path) -> dict[str, str | None]:
    """The checkout that a source file belongs to.

    Cached: the program computes with what it has imported, whatever is edited afterwards.

    Returns:
        `commit`, None outside a git checkout or without git, and `dirty`, a hash of everything
        that differs from the commit, new source files included; None if nothing differs.
    """
    try:
        # A file that lies below somebody else's repository, in a virtual environment, say, is not
        # described by its commit.
        _git(file, "ls-files", "--error-unmatch", file.name)
        root = Path(os.fsdecode(_git(file, "rev-parse", "--show-toplevel")).rstrip("\n"))
        at = root / "any"
        commit = _git(at, "rev-parse", "HEAD").decode().strip()
        difference = _git(at, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color")
        new = _git(at, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    digest = hashlib.sha256(difference)
    dirty = bool(difference)
    for name in sorted(filter(None, new)):
        path = root / os.fsdecode(name)
        if path.suffix in _SOURCES and path.is_file():
            dirty = True
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return {"commit": commit, "dirty": digest.hexdigest()[:12] if dirty else None}


def _git(file: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(file.parent), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout


@cache
def _packages() -> dict[str, str]:
    versions = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {name: versions[name] for name in sorted(filter(None, versions), key=str.lower)}


@cache
def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _device_name(device: str) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return _cpu()


def _numerics() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "threads": torch.get_num_threads(),
    }
