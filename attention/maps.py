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
    def weights(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        """Weights (..., Nk) of the transformed scores with bias.

        Args:
            logits: (..., Nk); hidden keys have a number there that is lower than any logit.
            visible: bool, broadcastable to the logits; None = all keys are seen.

        Returns:
            Zero for hidden keys. Rows that see nothing are without meaning, but they and their
            gradients are finite.
        """


class SoftmaxMap(ScoreMap):
    """For maps that only transform the scores."""

    is_softmax = True

    def weights(self, logits: Tensor, visible: Tensor | None) -> Tensor:
        return logits.softmax(-1)


def mapped_weights(
    map_: ScoreMap, scores: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Weights of scores (B, H, Nq, Nk) under a mask as for :func:`add_mask`.

    Returns:
        Weights, and which rows see no key, broadcastable to (B, H, Nq, 1): the weights of those
        are without meaning but finite. None where there is no mask.
    """
    logits = map_.transform(scores)
    if mask is None:
        return map_.weights(logits, None), None
    lowest = lowest_of(logits.dtype)
    if mask.dtype == torch.bool:
        # Added and not filled in, which takes ten times as long on a CPU.
        visible = mask
        added = torch.zeros_like(mask, dtype=logits.dtype).masked_fill_(~mask, lowest)
    else:
        visible, added = mask > -torch.inf, mask.clamp_min(lowest)
    return map_.weights(logits + added, visible), ~visible.any(-1, keepdim=True)


def lowest_of(dtype: torch.dtype) -> float:
    """What stands for minus infinity where rows without a visible key must not give NaN."""
    return torch.finfo(dtype).min / 4


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
