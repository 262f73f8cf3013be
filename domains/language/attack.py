"""The word swap attack: words of the test text become `AAA`.

Source: `WordAttack/src_attack/utils/vocabulary.py` of stefvk/Elliptical-Attention at 5ae39ee, which
runs each line through `Augmenter` of QData/TextAttack (0.3.10, `textattack/augmentation/
augmenter.py`, `textattack/shared/utils/strings.py`). Written anew here with a seed: the published
copies were drawn without one. What is inherited:

* Words are TextAttack's, not the tokens of the text: punctuation is no word, `'s` is the word `s`,
  `U.S.` holds the two words `U` and `S`, and `<unk>` holds the word `unk`.
* The rate is not the share of words that are swapped: every line with a word that may be swapped
  loses at least one, and the rest is rounded down.
* A word may be a part of a token: `AAA.S.` and `<AAA>` are no words of the vocabulary and become
  `<unk>`. In the second case nothing has changed.

Two things differ. TextAttack keeps the text before the last swap among its candidates, so that it
makes one swap fewer with probability 1/(m + 1) where m words are left to choose from: about 370
swaps of WikiText-103's test text, most of them in titles (of 3,656 at 1.5 %, 5,401 at 2.5 %, 10,344
at 5 %). Here every line gets the stated number. And it cuts a line with Chinese characters into
words by a segmenter of its own (one line of the published test text); here all lines are cut alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domains.common.seeds import derive

SWAPPED_TO = "AAA"

STOP_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
        i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself
        yourselves he him his himself she she's her hers herself it it's its itself they them
        their theirs themselves what which who whom this that that'll these those am is are was
        were be been being have has had having do does did doing a an the and but if or because as
        until while of at by for with about against between into through during before after above
        below to from up down in out on off over under again further then once here there when
        where why how all any both each few more most other some such no nor not only own same so
        than too very s t can will just don don't should should've now d ll m o re ve y ain aren
        aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't haven haven't isn
        isn't ma mightn mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn
        wasn't weren weren't won won't wouldn wouldn't
        """,
    )
)
"""NLTK's English list of 179 words (later releases add contractions that no text here holds).
Never swapped, in this spelling: `the` stays, `The` does not."""

WORD = re.compile(r"(?:[^\W_]|[\u02d7`×])[\w\u02d7`×'*@-]*")
"""A TextAttack word: a run of letters, digits and `'-_*@`, the latter not in front."""


@dataclass(frozen=True)
class Swapped:
    """A contaminated text.

    Attributes:
        lines: with their ends.
        swaps: words that were replaced.
        words: tokens of the text, an `<eos>` a line included.
    """

    lines: tuple[str, ...]
    swaps: int
    words: int


def swap_words(lines: Sequence[str], percent: float, mode: str, seed: int) -> Swapped:
    """A copy of a text with some words replaced by `AAA`; the same for equal arguments.

    Args:
        lines: the clean text.
        percent: nominal rate.
        mode: `textattack`: of a line with n words, max(1, floor(rate * n)), drawn without
            replacement from those that are neither stop words nor `AAA`, or all of these where
            there are fewer. `token`: every token that holds such a word is replaced as a whole,
            with the probability of the rate.
        seed: of the copy.
    """
    rate = percent / 100
    rng = np.random.default_rng(derive(seed, "word swap", mode, str(float(percent))))
    pick = _pick_words if mode == "textattack" else _pick_tokens
    swapped, swaps, words = [], 0, 0
    for line in lines:
        spans = pick(line, rate, rng)
        swapped.append(_replace(line, spans))
        swaps += len(spans)
        words += len(line.split()) + 1
    return Swapped(tuple(swapped), swaps, words)


Spans = list[tuple[int, int]]


def _may_be_swapped(word: str) -> bool:
    return word not in STOP_WORDS and word != SWAPPED_TO


def _pick_words(line: str, rate: float, rng: np.random.Generator) -> Spans:
    words = list(WORD.finditer(line))
    spans = [word.span() for word in words if _may_be_swapped(word.group())]
    number = min(max(1, int(rate * len(words))), len(spans))
    # The smallest of independent numbers: a draw without replacement.
    chosen = np.argsort(rng.random(len(spans)), kind="stable")[:number]
    return _in_order(spans, chosen)


def _pick_tokens(line: str, rate: float, rng: np.random.Generator) -> Spans:
    spans = [
        token.span()
        for token in re.finditer(r"\S+", line)
        if any(_may_be_swapped(word) for word in WORD.findall(token.group()))
    ]
    return _in_order(spans, np.flatnonzero(rng.random(len(spans)) < rate))


def _in_order(spans: Spans, chosen: NDArray[np.int64]) -> Spans:
    return [spans[number] for number in sorted(chosen)]


def _replace(line: str, spans: Spans) -> str:
    for start, end in reversed(spans):
        line = line[:start] + SWAPPED_TO + line[end:]
    return line
