"""Cross-entropy of pixels from scores of patches, without holding the scores of all pixels.

For 150 classes and 512 x 512 pixels these are 157 MB a picture, several times in the backward
pass. Here they are made a few rows at a time, and the gradient with respect to the patches is
found in the same sweep. Same sums in another order: equal up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from domains.segmentation.batch import IGNORED

ENTRIES = {"cpu": 2**20, "cuda": 2**26}
"""By device, scores of pixels that are held at a time: what fits into a cache, or few kernels."""


def pixel_cross_entropy(scores: Tensor, masks: Tensor, patch: int) -> Tensor:
    """Mean cross-entropy over the labelled pixels of a batch, a scalar.

    Equals `cross_entropy(upsample(scores), masks, ignore_index=IGNORED)` with bilinear upsampling
    (`align_corners=False`), and 0 where no pixel is labelled.

    Args:
        scores: (B, K, rows, columns), one score a patch.
        masks: (B, H, W) int64 classes; pictures that are no whole number of patches reach less far
            than the scores.
        patch: side of a patch in pixels.
    """
    wide = scores.permute(0, 2, 3, 1).to(torch.promote_types(scores.dtype, torch.float32))
    loss: Tensor = _PixelCrossEntropy.apply(wide, masks, patch)
    return loss


class _PixelCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, scores_bijk: Tensor, masks: Tensor, patch: int) -> Tensor:
        with torch.autocast(scores_bijk.device.type, enabled=False):
            total, gradient = _sweep(scores_bijk, masks, patch, ctx.needs_input_grad[0])
        count = (masks != IGNORED).sum().clamp(min=1)
        if gradient is not None:
            ctx.save_for_backward(gradient.div_(count))
        return total / count

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_loss, None, None


def _sweep(
    scores_bijk: Tensor, masks: Tensor, patch: int, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Sum of the cross-entropies, and its gradient (B, rows, columns, K)."""
    batch, rows, columns, classes = scores_bijk.shape
    height, width = masks.shape[1:]
    down = bilinear_weights(rows, patch, scores_bijk)[:height]
    across = bilinear_weights(columns, patch, scores_bijk)[:width]
    wide = across @ scores_bijk  # (B, rows, W, K): few rows, so this may be held
    gradient = torch.zeros_like(wide) if with_gradient else None
    total = scores_bijk.new_zeros((), dtype=torch.float64)
    budget = ENTRIES["cpu" if scores_bijk.device.type == "cpu" else "cuda"]
    step = max(1, budget // (width * classes))
    for picture in range(batch):
        for top in range(0, height, step):
            strip = slice(top, min(top + step, height))
            # The patches that these rows of pixels lie between.
            near = slice(
                max(0, (2 * strip.start + 1 - patch) // (2 * patch)),
                (2 * strip.stop - 1 - patch) // (2 * patch) + 2,
            )
            weights = down[strip, near]
            labels = masks[picture, strip].flatten()
            pixels = (weights @ wide[picture, near].flatten(1)).view(-1, classes)
            log_p = torch.log_softmax(pixels, dim=1)
            real = labels != IGNORED
            chosen = torch.where(real, labels, 0)[:, None]
            total -= (log_p.gather(1, chosen)[:, 0] * real).sum(dtype=torch.float64)
            if gradient is None:
                continue
            p = log_p.exp_()
            p.scatter_add_(1, chosen, p.new_full((1, 1), -1.0).expand_as(chosen))
            p *= real[:, None]
            gradient[picture, near] += (weights.T @ p.view(len(weights), -1)).view(
                -1, width, classes
            )
    if gradient is not None:
        gradient = across.T @ gradient
    return total.to(scores_bijk.dtype), gradient


def bilinear_weights(patches: int, patch: int, like: Tensor) -> Tensor:
    """(patches * patch, patches) weights of patches in pixels along one side.

    A pixel lies between the centres of two patches, and beyond the outermost centres on one.
    """
    pixels = torch.arange(patches * patch, device=like.device, dtype=torch.float64)
    places = ((pixels + 0.5) / patch - 0.5).clamp(0.0, patches - 1.0)
    centres = torch.arange(patches, device=like.device, dtype=torch.float64)
    return (1.0 - (places[:, None] - centres).abs()).clamp_(min=0.0).to(like.dtype)
