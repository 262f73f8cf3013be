"""Numerics flags, device names and peak memory of the process that executes a run."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import torch


def uses_cuda(accelerator: str) -> bool:
    """Whether a run with this `trainer.accelerator` is trained on a CUDA device."""
    return accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()


def gpu_count() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count()


def set_numerics() -> None:
    """Deterministic kernels where they exist, full float32 products everywhere."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def device_name(accelerator: str) -> str:
    """The device as results name it."""
    return torch.cuda.get_device_name() if uses_cuda(accelerator) else "cpu"


def synchronize(accelerator: str) -> None:
    """Wait for the device, so that a wall-clock interval covers its work."""
    if uses_cuda(accelerator):
        torch.cuda.synchronize()


class PeakMemory:
    """Peak memory since construction.

    On CUDA the peak of allocated device memory. On a CPU the peak resident set of the process:
    Linux lets a process reset that mark, so that one worker can measure run after run.
    """

    def __init__(self, accelerator: str) -> None:
        self._cuda = uses_cuda(accelerator)
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """Peak in bytes."""
        if self._cuda:
            return int(torch.cuda.max_memory_allocated())
        if sys.platform == "linux":
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
