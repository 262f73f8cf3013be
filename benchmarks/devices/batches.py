"""Several devices that share the batches of a run: Lightning's DDP with weighed losses."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch import distributed as dist

from benchmarks.devices.batch_norm import share_batch_norms
from domains.base import BenchmarkModule


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
    share_batch_norms(module.net, module)
    module.devices = devices


def check_world(devices: int) -> None:
    """Make sure that as many processes train together as were asked for.

    Raises:
        RuntimeError: they do not, whatever has been assumed.
    """
    found = dist.get_world_size() if dist.is_initialized() else 1
    if found != devices:
        raise RuntimeError(f"trainer.devices={devices}, but {found} processes train together")
