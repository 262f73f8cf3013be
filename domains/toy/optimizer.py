"""AdamW over many models at once, each with its own learning rates and weight decays."""

from __future__ import annotations

import torch
from torch import Tensor


class StackedAdamW:
    """`torch.optim.AdamW` of every row of one matrix.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 2, in the
    order of operations of `torch.optim.AdamW`, so that the two agree to rounding.

    Args:
        weights: (M, P) weights of M models; changed in place by :meth:`step`.
        lr: (M, P) learning rates.
        weight_decay: (M, P) weight decays.
        betas: decay rates of both moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        weights: Tensor,
        lr: Tensor,
        weight_decay: Tensor,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        self.weights = weights
        self.lr = lr
        self.decay = lr * weight_decay
        self.betas = betas
        self.eps = eps
        self.steps = 0
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self._scratch = torch.empty_like(weights)

    @torch.no_grad()
    def step(self, gradient: Tensor, factor: float = 1.0) -> None:
        """Update the weights.

        Args:
            gradient: (M, P); its content is lost.
            factor: of a schedule, on all learning rates.
        """
        self.steps += 1
        beta1, beta2 = self.betas
        correction1, correction2 = 1.0 - beta1**self.steps, 1.0 - beta2**self.steps
        scratch = self._scratch
        torch.mul(self.weights, self.decay, out=scratch)
        self.weights.sub_(scratch, alpha=factor)
        self.mean.lerp_(gradient, 1.0 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        torch.sqrt(self.square, out=scratch).div_(correction2**0.5).add_(self.eps)
        torch.mul(self.mean, self.lr, out=gradient)
        self.weights.addcdiv_(gradient, scratch, value=-factor / correction1)
