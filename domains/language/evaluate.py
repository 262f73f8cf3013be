"""Perplexity of a text under three protocols, which are never compared with one another.

All count every token of the text, `<eos>` and `<unk>` included, and none uses dropout.
Perplexity is exp(total negative log-likelihood / number of predicted tokens).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domains.language.interface import LanguageModel, Memory
from domains.language.vocabulary import Tokens

WINDOWS_AT_ONCE = 64
"""Windows in a batch. Bounds the memory; the result does not depend on it."""

XL_SEGMENT, XL_MEMORY, XL_CLAMP = 64, 640, 400
"""Transformer-XL's evaluation: `pytorch/run_wt103_base.sh eval` of kimiyoung/transformer-xl."""


@dataclass(frozen=True)
class Score:
    """How well a text was predicted.

    Attributes:
        nats: total negative log-likelihood.
        positions: tokens that were predicted.
    """

    nats: float
    positions: int

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood, in nats a token."""
        return self.nats / self.positions

    @property
    def perplexity(self) -> float:
        """Infinite where it is too large for a float, NaN where the loss is."""
        with np.errstate(over="ignore"):
            return float(np.exp(np.float64(self.loss)))


def segments(model: LanguageModel, tokens: Tensor, *, length: int, columns: int) -> Score:
    """Score consecutive segments, the columns side by side; the protocol of validation.

    Without a memory the first tokens of each segment have next to no context, which makes this
    cheap and its perplexities higher than those of the other protocols.

    Args:
        model: on the device of the tokens.
        tokens: (n,) int64.
        length: tokens of a segment.
        columns: that the text is cut into, the remainder is dropped. The first token of each is
            not predicted.
    """
    return _in_segments(model, tokens, length, columns, model.new_memory())


def xl(model: LanguageModel, tokens: Tensor, *, columns: int) -> Score:
    """Score as Transformer-XL's own evaluation does: with a long memory.

    Segments of 64 new tokens, 640 remembered, distances above 400 count as 400, equal context for
    all tokens.

    Args:
        model: one that has a memory, on the device of the tokens.
        tokens: (n,) int64.
        columns: see :func:`segments`; 10 in the published evaluation.

    Raises:
        ValueError: the model has no memory.
    """
    memory = model.new_memory(length=XL_MEMORY, clamp=XL_CLAMP, equal_context=True)
    if memory is None:
        raise ValueError(
            "protocol=xl needs a model with a memory: model.family=transformer_xl; allowed for "
            "others: protocol=sliding, segments"
        )
    return _in_segments(model, tokens, XL_SEGMENT, columns, memory)


def sliding(
    model: LanguageModel, tokens: Tensor, *, window: int, batch: int = WINDOWS_AT_ONCE
) -> Score:
    """Score with a window that moves by one token: every token has a whole window before it.

    The first window counts with all its targets, every other one with its last. So all tokens but
    the text's first are predicted once. Windows are independent of one another; of all but the
    first only the last target is computed.

    Source: `src/eval_sliding_window.py` of IDSIA/lmtool-fwp at 0159201, one window at a time there.

    Args:
        model: on the device of the tokens.
        tokens: (n,) int64.
        window: tokens that the model reads at once.
        batch: windows that are computed at once.

    Raises:
        ValueError: the text is not longer than the window.
    """
    if len(tokens) <= window:
        raise ValueError(
            f"a text of {len(tokens)} tokens is too short for recipe.window={window}; allowed: "
            f"up to {len(tokens) - 1}"
        )
    windows = tokens.unfold(0, window + 1, 1)  # a view: (n - window, window + 1)
    with _evaluating(model):
        first, _ = model.log_likelihood(windows[:1, :-1], windows[:1, 1:])
        total = _nats(first)
        for some in windows[1:].split(batch):
            inputs, targets = some[:, :-1].contiguous(), some[:, 1:].contiguous()
            last, _ = model.log_likelihood(inputs, targets, last_only=True)
            total += _nats(last)
    return Score(float(total), len(tokens) - 1)


def unigram(counts: NDArray[np.int64], tokens: Tokens) -> Score:
    """Score of the frequencies in the training text, for the same tokens as :func:`sliding`.

    An entry of the vocabulary that is not in the training text counts as seen once.

    Args:
        counts: (V,) of the training text.
        tokens: (n,) of the text that is scored.
    """
    nats = np.log(counts.sum()) - np.log(np.maximum(counts, 1))
    return Score(float(nats[tokens[1:]].sum()), len(tokens) - 1)


def _in_segments(
    model: LanguageModel, tokens: Tensor, length: int, columns: int, memory: Memory | None
) -> Score:
    steps = len(tokens) // columns
    if steps < 2:
        raise ValueError(
            f"a text of {len(tokens)} tokens is too short for recipe.evaluation_batch={columns}; "
            f"allowed: up to {len(tokens) // 2}"
        )
    cut = tokens[: columns * steps].view(columns, steps)
    total = tokens.new_zeros((), dtype=torch.float64)
    with _evaluating(model):
        for inputs, targets in zip(
            cut[:, :-1].split(length, 1), cut[:, 1:].split(length, 1), strict=True
        ):
            each, memory = model.log_likelihood(
                inputs.contiguous(), targets.contiguous(), memory=memory
            )
            total += _nats(each)
    return Score(float(total), columns * (steps - 1))


def _nats(log_likelihood: Tensor) -> Tensor:
    """Negative sum in double precision, left on the device: nothing waits for it."""
    return -log_likelihood.double().sum()


@contextmanager
def _evaluating(model: LanguageModel) -> Iterator[None]:
    """Without dropout and gradients; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
