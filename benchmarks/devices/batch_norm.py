"""Batch norm over the parts of a batch that several processes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from domains.base import BenchmarkModule


def share_batch_norms(parent: nn.Module, module: BenchmarkModule) -> None:
    """Have every batch norm below a module take its statistics over all processes."""
    for name, child in parent.named_children():
        if isinstance(child, nn.SyncBatchNorm):
            continue
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(parent, name, SharedBatchNorm(child, module))
        else:
            share_batch_norms(child, module)


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
