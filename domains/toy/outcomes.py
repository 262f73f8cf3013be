"""How a training ended, from its accuracies; and what is read off the attention on the way."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from domains.toy.config import OUTCOMES
from domains.toy.model import CLS, Looks

READINGS = (
    "key_norm_biased",
    "key_norm_unbiased",
    "key_norm_other",
    "query_norm",
    "attention_biased",
    "attention_unbiased",
    "attention_other",
)
"""Names of :func:`readings`, logged as `probe/NAME`, before training as `initial/NAME`."""


def outcome(train: float, test: float) -> str:
    """The outcome of a run, one of :data:`~domains.toy.config.OUTCOMES`.

    The limits of the first two are the paper's (appendix A.4); it calls chance degenerate, which
    is taken as below 15 % on both splits: with 1,000 samples chance of 10 % is 10 ± 1.

    Args:
        train: accuracy on the training samples after the last epoch, in %.
        test: the same on the test samples.
    """
    correct, biased, degenerate, other = OUTCOMES
    if train > 90.0 and test > 90.0:
        return correct
    if 50.0 <= train <= 80.0 and 20.0 <= test <= 40.0:
        return biased
    if train < 15.0 and test < 15.0:
        return degenerate
    return other


def outcome_metrics(train: float, test: float) -> Mapping[str, float]:
    """100 for the outcome of a run, 0 for the others."""
    found = outcome(train, test)
    return {name: 100.0 if name == found else 0.0 for name in OUTCOMES}


def readings(looks: Looks, positions: Tensor, biased: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over a batch and what they have to be divided by, for each of :data:`READINGS`.

    A key norm is a mean over tokens of a kind: answers of biased samples, answers of unbiased
    ones, all other tokens ([CLS] belongs to none). An attention is a mean over samples: the weight
    of the answer in biased and in unbiased samples, and of all other tokens together.

    Args:
        looks: with any leading axes in front of the batch axis.
        positions: (B,) place of the answer among the tokens.
        biased: (B,) bool.

    Returns:
        (..., 7) sums and (7,) counts, float64.
    """
    samples, places = looks.weights.shape[-2:]
    answer = torch.zeros(samples, places, dtype=torch.float64, device=positions.device)
    answer[torch.arange(samples, device=positions.device), positions + 1] = 1.0
    other = 1.0 - answer
    other[:, CLS] = 0.0
    is_biased = biased.double()[:, None]
    # (3, B * places) indicators of the three kinds: one product sums all.
    kinds = torch.stack([answer * is_biased, answer * (1.0 - is_biased), other]).flatten(1)
    key_norms = looks.key_norms.double().flatten(-2) @ kinds.T
    attention = looks.weights.double().flatten(-2) @ kinds.T
    query = looks.query_norms.double().sum(-1, keepdim=True)
    tokens, of_each = kinds.sum(1), is_biased.sum()
    total = torch.full((), float(samples), dtype=torch.float64, device=positions.device)
    counts = torch.cat([tokens, torch.stack([total, of_each, total - of_each, total])])
    return torch.cat([key_norms, query, attention], dim=-1), counts
