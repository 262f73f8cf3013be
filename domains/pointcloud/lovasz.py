"""The Lovász-Softmax loss: a convex surrogate of one minus the mean IoU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from domains.pointcloud.batch import IGNORED


def lovasz_softmax(logits: Tensor, label: Tensor) -> Tensor:
    """Mean over the classes that occur, all points of the batch together; a scalar.

    Zero, with zero gradients, where every point is ignored.

    Source: Berman et al. 2018, arXiv 1705.08790; equal to `pointcept/models/losses/lovasz.py` of
    Pointcept/Pointcept at d74c646 (`tests/domains/pointcloud/test_losses.py`), all classes at once.

    Args:
        logits: (N, C) scores before the softmax.
        label: (N,) int64 class, or `IGNORED`.
    """
    counted = label != IGNORED
    probability = logits[counted].softmax(1, dtype=torch.promote_types(logits.dtype, torch.float32))
    is_class = F.one_hot(label[counted], logits.shape[1]).to(probability.dtype)
    present = is_class.sum(0).nonzero().squeeze(1)
    if len(present) == 0:
        return logits.sum() * 0.0
    is_class = is_class[:, present]
    error, order = (is_class - probability[:, present]).abs().sort(0, descending=True)
    is_class = is_class.gather(0, order)
    total = is_class.sum(0)
    missed = total - is_class.cumsum(0)
    union = total + (1.0 - is_class).cumsum(0)
    jaccard = 1.0 - missed / union
    # What each point adds to the Jaccard loss when points are taken from the worst on.
    weight = torch.cat([jaccard[:1], jaccard.diff(dim=0)])
    return (error * weight).sum(0).mean()


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean over the points that are not ignored; zero, not NaN, where all are.

    Args:
        logits: (N, C).
        label: (N,) int64 class, or `IGNORED`.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(wide, label, ignore_index=IGNORED, reduction="sum")
    return total / (label != IGNORED).sum().clamp_min(1)
