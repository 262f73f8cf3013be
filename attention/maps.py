"""From scores to attention weights, where that is not a softmax of the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


class ScoreMap(ABC):
    """How the scores of a row become its weights; without parameters.

    The kernels apply it to blocks of whole rows and compute each block again in the backward pass.
    """

    is_softmax: ClassVar[bool] = False
    """Whether the weights are the softmax of the logits."""

    def transform(self, scores: Tensor) -> Tensor:
        """Scores (..., Nk), element by element, before bias and masks are added."""
        return scores

    @abstractmethod
    def weights(self, logits: Tensor) -> Tensor:
        """Weights (..., Nk) of the transformed scores with bias; hidden keys have -inf there.

        Hidden keys have weight zero, whole rows of them too, and no gradient is NaN.
        """


class SoftmaxMap(ScoreMap):
    """For maps that only transform the scores."""

    is_softmax = True

    def weights(self, logits: Tensor) -> Tensor:
        return probabilities_of(logits)


def probabilities_of(logits: Tensor) -> Tensor:
    """Softmax over the last axis; zeros where all logits of a row are -inf."""
    hidden = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)


def add_mask(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with a mask, -inf where a query does not see a key.

    Args:
        logits: (B, H, Nq, Nk).
        mask: broadcastable to it; bool, True = visible, or float to be added; None = no mask.
    """
    if mask is None:
        return logits
    if mask.dtype == torch.bool:
        return logits.masked_fill(~mask, -torch.inf)
    return logits + mask
