"""A made-up text, for smoke runs and tests: no file is needed."""

from __future__ import annotations

import hashlib

import numpy as np

from domains.common.seeds import derive
from domains.language.attack import SWAPPED_TO, swap_words
from domains.language.config import ATTACK_RATES
from domains.language.corpus import Corpus
from domains.language.text import UNKNOWN
from domains.language.vocabulary import Tokens, Words

WORDS = 200
"""Distinct words beside `<eos>`, `<unk>` and `AAA`."""

FOLLOWERS = 4
"""Words that may come after a word: what there is to learn."""


def tiny_corpus(sizes: dict[str, int], attack: str, attack_seed: int) -> Corpus:
    """A text whose every word decides among four for the next: below the unigram perplexity.

    Args:
        sizes: tokens of `train`, `val` and `test`.
        attack: mode of :func:`domains.language.attack.swap_words`, or `none`.
        attack_seed: of the contaminated copies.
    """
    texts = {split: _lines(split, size) for split, size in sizes.items()}
    vocabulary = Words.learn(lambda: [[*texts["train"], f"{UNKNOWN} {SWAPPED_TO}\n"]])

    def encode(lines: list[str] | tuple[str, ...], size: int) -> Tokens:
        return vocabulary.encode(lines).tokens[:size]

    streams = {split: encode(lines, sizes[split]) for split, lines in texts.items()}
    attacked = {}
    if attack != "none":
        for rate in ATTACK_RATES:
            copy = swap_words(texts["test"], rate, attack, attack_seed)
            attacked[rate] = encode(copy.lines, sizes["test"])
    digest = hashlib.sha256()
    for tokens in (*streams.values(), *attacked.values()):
        digest.update(tokens.tobytes())
    return Corpus(
        streams=streams,
        counts=np.bincount(streams["train"], minlength=vocabulary.size),
        kind="synthetic",
        source="made-up words, each of which decides among four for the next",
        fingerprint=f"sha256:{digest.hexdigest()}",
        attacked=attacked,
    )


def _lines(split: str, size: int) -> list[str]:
    """Lines of 1 to 30 words that hold at least `size` tokens together."""
    follow = np.random.default_rng(derive(0, "followers")).integers(WORDS, size=(WORDS, FOLLOWERS))
    rng = np.random.default_rng(derive(0, "text", split))
    word, words = 0, []
    for choice in rng.integers(FOLLOWERS, size=size):
        word = follow[word, choice]
        words.append(f"word{word}")
    ends = np.cumsum(rng.integers(1, 31, size=size))
    pieces = np.split(np.array(words), ends[ends < size])
    return [f"{' '.join(piece)}\n" for piece in pieces]
