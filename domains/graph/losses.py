"""Losses of the tasks; all are means over what a batch predicts.

Source of the weighted cross-entropy: rampasek/GraphGPS at 2801570,
`graphgps/loss/weighted_cross_entropy.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def class_weights(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """(classes,) share of the labels that are of *another* class; 0 for classes that are absent.

    Args:
        labels: (V,) int64.
        classes: number of classes.
        dtype: of the result.
    """
    counts = torch.bincount(labels, minlength=classes)
    others = (len(labels) - counts) * (counts > 0)
    return others.to(dtype) / len(labels)


def weighted_cross_entropy(logits: Tensor, labels: Tensor, whole: Tensor | None = None) -> Tensor:
    """Cross-entropy with the weights of the batch's own labels.

    With several classes it is divided by the sum of the weights of all nodes, with two (one
    logit) by the number of nodes. Where all nodes are of one class, all weights are 0 and so is
    the loss; the reference's is NaN then, with several classes.

    Args:
        logits: (V, classes), or (V, 1) for two classes.
        labels: (V,) int64.
        whole: labels that the weights are of, if these are a part of a batch.
    """
    whole = labels if whole is None else whole
    if logits.shape[1] == 1:
        weights = class_weights(whole, 2, logits.dtype)[labels]
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype), weights)
    weights = class_weights(whole, logits.shape[1], logits.dtype)
    total = F.cross_entropy(logits, labels, weights, reduction="sum")
    return total / weights[labels].sum().clamp_min(torch.finfo(logits.dtype).tiny)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all entries that have a target; those without (NaN) count nothing.

    Args:
        logits: any shape.
        targets: of that shape, 0 or 1, or NaN.
    """
    known = ~targets.isnan()
    return F.binary_cross_entropy_with_logits(logits[known], targets[known])
