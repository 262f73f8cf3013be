"""Several devices for one run: a process each, which share the batches of one device.

Every process reads the same batches and computes its part of them (`BenchmarkModule.part`);
losses are added with the weight that each part has in the loss of the whole, and batch norm takes
its statistics over all parts. So the effective batch, the steps and the schedule are those of
one device, also where a batch does not divide evenly. Evaluation is not shared: every process
evaluates everything, which counts each sample once whatever their number, and needs no process to
wait for another.

The process of the run's worker is rank 0. It starts the others, which run the same code over a
:class:`Witness` of the run, and write nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.claims import Observer
from benchmarks.store import Run, RunEnded, RunKey
from domains.base import BenchmarkModule

_RANK = "LOCAL_RANK"  # Lightning takes processes that have it for started by somebody else
_WITNESS = "BENCHMARKS_WITNESS"
_CODE = "from benchmarks.distributed import main; main()"
_END_SECONDS = 30.0


class Witness(Run):
    """A run as the processes beside rank 0 see it: they read it, and write nothing."""

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Leave it to rank 0."""

    def append_metrics(self, *records: Mapping[str, Any]) -> None:
        """Leave it to rank 0."""


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
        stack.enter_context(_environment(devices))
        others = [stack.enter_context(_process(rank, run, config)) for rank in range(1, devices)]
        watched = threading.Event()
        stack.callback(watched.set)
        threading.Thread(target=_watch, args=(others, watched), daemon=True).start()
        yield
        watched.set()
        _leave()
        for process in others:
            process.wait(_END_SECONDS)


def main() -> None:
    """A process beside rank 0."""
    given = json.load(sys.stdin)
    torch.set_num_threads(given["threads"])
    from benchmarks.runner import execute

    key = RunKey(**given["key"])
    run = Witness(key, Path(given["path"]), Observer())
    signal.signal(signal.SIGTERM, lambda *_: None)  # rank 0 says when to stop
    try:
        execute(run, given["config"], lambda event: None, lambda: None)
    except RunEnded:
        pass  # rank 0 has as well; it may still be saving, and nobody has died
    finally:
        _leave()


@contextmanager
def _environment(devices: int) -> Iterator[None]:
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
        _leave()
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


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# Training


class SharedBatches(DDPStrategy):
    """DDP that weighs the loss of each process by its part of the batch."""

    def __init__(self) -> None:
        # Buffers differ on purpose: domains sum up what their own process has seen.
        super().__init__(find_unused_parameters=True, broadcast_buffers=False)

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Backward of what becomes the loss of the whole batch when DDP takes the mean."""
        # The loss, not the gradients: through batch norm they reach the other processes, too.
        module: Any = self.lightning_module
        weight = module.share * self.world_size
        return super().backward(closure_loss * weight, *args, **kwargs)


def prepare(module: BenchmarkModule, devices: int) -> None:
    """Make a module fit for training on several devices.

    Its batch norms take their statistics over all of them. Metric objects do not gather: what is
    evaluated, every process evaluates whole.
    """
    from torchmetrics import Metric

    for child in module.modules():
        if isinstance(child, Metric):
            child.sync_on_compute = False
    _share_batch_norms(module.net, module)
    module.devices = devices


def check_world(devices: int) -> None:
    """Make sure that as many processes train together as were asked for.

    Raises:
        RuntimeError: they do not, whatever has been assumed.
    """
    found = dist.get_world_size() if dist.is_initialized() else 1
    if found != devices:
        raise RuntimeError(f"trainer.devices={devices}, but {found} processes train together")


def _share_batch_norms(parent: nn.Module, module: BenchmarkModule) -> None:
    for name, child in parent.named_children():
        if isinstance(child, nn.SyncBatchNorm):
            continue
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(parent, name, SharedBatchNorm(child, module))
        else:
            _share_batch_norms(child, module)


class _Sum(torch.autograd.Function):
    """Sum over all processes; each one's gradient reaches what every process has put in."""

    @staticmethod
    def forward(ctx: Any, ours: Tensor) -> Tensor:
        total = ours.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _sum(ours: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(ours)  # type: ignore[no-untyped-call]
    return total


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose statistics in training are those of all processes' parts together.

    Like `nn.SyncBatchNorm`, which exists for GPUs alone. Keeps parameters, buffers and their
    names.

    Args:
        norm: what it takes the place of.
        module: knows how the present batch is shared.
    """

    _sharing: Callable[[], bool]

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, module: BenchmarkModule) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        self._parameters.update(norm._parameters)
        self._buffers.update(norm._buffers)
        self.training = norm.training
        self._sharing = lambda: module.is_shared

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self._sharing():
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        ours = input.new_full((1,), input.numel() // input.shape[1])
        count, total = _sum(torch.cat([ours, input.sum(axes)])).tensor_split([1])
        mean = total / count
        centred = input - mean.view(shape)
        variance = _sum(centred.square().sum(axes)) / count
        self._remember(mean.detach(), variance.detach(), count.detach())
        normed: Tensor = centred * torch.rsqrt(variance + self.eps).view(shape)
        if not self.affine:
            return normed
        return normed * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(unbiased, momentum)
