"""Draws the samples of the task.

A sample is a sequence of tokens; a token is 10 real numbers x^k beside a one-hot class x^v. One
token, the answer, gives the label: its class. Only the distribution of x^k tells which one it is:

    other tokens     x^k ~ N(0, I)
    unbiased answer  x^k ~ N(0, Sigma),   Sigma = S S^T,  S_ij ~ N(0, 1)
    biased answer    x^k ~ N(b, 0.1 I),   b ~ N(0, Sigma)
    position         Int(N(10, 2)), cut to the sequence

S and b are drawn once a data set. Every quantity has a stream of its own, so that a larger set
begins with the samples of a smaller one.

Source: QUEST, arXiv 2604.00199, section 2.2 and appendix A.3; Int() is taken as truncation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domains.common.seeds import derive

KEY_WIDTH = 10
CLASSES = 10
WIDTH = KEY_WIDTH + CLASSES
POSITION_MEAN = 10.0
POSITION_SD = 2.0
BIASED_VARIANCE = 0.1
TRAIN_BIASED = 0.5


@dataclass(frozen=True)
class Samples:
    """Samples of one split.

    Attributes:
        tokens: (S, N, 20) float32, x^k in front of x^v.
        labels: (S,) int64 class of the answer.
        positions: (S,) int64 place of the answer.
        biased: (S,) bool, whether the answer is biased.
    """

    tokens: NDArray[np.float32]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64]
    biased: NDArray[np.bool_]


def draw(
    seed: int, split: str, samples: int, length: int, *, positions: str, biased: float
) -> Samples:
    """Samples of a split.

    Args:
        seed: of the data set.
        split: names the streams; splits are independent of one another.
        samples: number S of samples.
        length: tokens N of a sample.
        positions: `normal` or `uniform`.
        biased: probability of a biased answer.
    """

    def stream(quantity: str) -> np.random.Generator:
        return np.random.default_rng(derive(seed, "toy", split, quantity))

    spread, mean = hidden_parameters(seed)
    if positions == "uniform":
        place = stream("positions").integers(0, length, samples)
    else:
        drawn = stream("positions").normal(POSITION_MEAN, POSITION_SD, samples)
        place = np.clip(np.trunc(drawn), 0, length - 1).astype(np.int64)
    is_biased = stream("biased").random(samples) < biased
    noise = stream("answers").standard_normal((samples, KEY_WIDTH))
    answer = np.where(is_biased[:, None], mean + np.sqrt(BIASED_VARIANCE) * noise, noise @ spread.T)
    keys = stream("keys").standard_normal((samples, length, KEY_WIDTH))
    rows = np.arange(samples)
    keys[rows, place] = answer
    classes = stream("classes").integers(0, CLASSES, (samples, length))
    tokens = np.concatenate([keys, np.eye(CLASSES)[classes]], axis=2).astype(np.float32)
    return Samples(tokens, classes[rows, place], place, is_biased)


def hidden_parameters(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """S (10, 10) and b (10,) of a data set."""
    spread = np.random.default_rng(derive(seed, "toy", "covariance")).standard_normal(
        (KEY_WIDTH, KEY_WIDTH)
    )
    noise = np.random.default_rng(derive(seed, "toy", "bias")).standard_normal(KEY_WIDTH)
    return spread, spread @ noise


def fingerprint(splits: dict[str, Samples]) -> str:
    """`sha256:...` of everything that training and evaluation read."""
    digest = hashlib.sha256()
    for name, samples in sorted(splits.items()):
        digest.update(name.encode())
        for array in (samples.tokens, samples.labels, samples.positions, samples.biased):
            digest.update(np.ascontiguousarray(array).tobytes())
    return f"sha256:{digest.hexdigest()}"
