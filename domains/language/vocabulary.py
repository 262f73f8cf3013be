"""Vocabularies: all words of the training text, or byte pairs learnt on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from domains.contract import DataCorrupt
from domains.language.text import EOS, UNKNOWN, split_words

Tokens = NDArray[np.int32]
Blocks = Callable[[], Iterable[Sequence[str]]]
"""Gives the lines of a text, many at a time, from the start at every call."""


@dataclass(frozen=True)
class Encoded:
    """Lines as numbers.

    Attributes:
        tokens: (n,) int32.
        unknown: words that became `<unk>` because the vocabulary lacks them.
    """

    tokens: Tokens
    unknown: int


class Vocabulary(Protocol):
    """Turns lines into numbers from 0 to `size` - 1."""

    @property
    def size(self) -> int:
        """Number of entries."""

    def encode(self, lines: Sequence[str]) -> Encoded:
        """Numbers of some lines, `<eos>` behind each.

        Raises:
            DataCorrupt: a word has no number and there is no `<unk>` to stand for it.
        """

    def save(self, folder: Path) -> None:
        """Write it into a folder."""


class Words:
    """`<eos>`, then the words of the training text by falling frequency.

    Of words that are equally frequent the one that comes first in the text is first: the order of
    Transformer-XL's vocabulary, where `Counter.most_common` gives it.

    Args:
        words: entries in their order.
    """

    FILE = "vocabulary.txt"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._index = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def learn(cls, blocks: Blocks) -> Words:
        """The vocabulary of a text."""
        counter: Counter[str] = Counter()
        for lines in blocks():
            counter.update(split_words(lines))
        return cls([EOS, *(word for word, _ in counter.most_common() if word != EOS)])

    @classmethod
    def load(cls, folder: Path) -> Words:
        """Read what :meth:`save` wrote."""
        return cls((folder / cls.FILE).read_text(encoding="utf-8").split("\n"))

    def save(self, folder: Path) -> None:
        (folder / self.FILE).write_text("\n".join(self.words), encoding="utf-8", newline="\n")

    @property
    def size(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def encode(self, lines: Sequence[str]) -> Encoded:
        words = split_words(lines)
        tokens = np.fromiter(map(self._index.get, words, repeat(-1)), np.int32, len(words))
        missing = np.flatnonzero(tokens < 0)
        if len(missing):
            if UNKNOWN not in self._index:
                raise DataCorrupt(
                    f"the word '{words[missing[0]]}' is not in the training text, and the training "
                    f"text has no {UNKNOWN} to stand for it: the files do not belong together, or "
                    "are the raw version of the text"
                )
            tokens[missing] = self._index[UNKNOWN]
        return Encoded(tokens, len(missing))


class BytePairs:
    """Byte pairs learnt on the training text by the library `tokenizers`.

    `<eos>` and `<unk>` are entries of their own; whatever else is in a line has some code.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """

    FILE = "tokenizer.json"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._eos = tokenizer.token_to_id(EOS)

    @classmethod
    def learn(cls, blocks: Blocks, size: int) -> BytePairs:
        """A vocabulary of at most `size` entries.

        Raises:
            ValueError: the library is not installed.
        """
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[EOS, UNKNOWN],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        lines = (line.strip() for block in blocks() for line in block)
        tokenizer.train_from_iterator(lines, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, folder: Path) -> BytePairs:
        """Read what :meth:`save` wrote."""
        return cls(_tokenizers().Tokenizer.from_file(str(folder / cls.FILE)))

    def save(self, folder: Path) -> None:
        self._tokenizer.save(str(folder / self.FILE))

    @property
    def size(self) -> int:
        size: int = self._tokenizer.get_vocab_size()
        return size

    def encode(self, lines: Sequence[str]) -> Encoded:
        coded = self._tokenizer.encode_batch([line.strip() for line in lines])
        parts = [np.array([*line.ids, self._eos], np.int32) for line in coded]
        return Encoded(np.concatenate(parts) if parts else np.empty(0, np.int32), 0)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(
            "dataset.tokenizer=bpe needs the package tokenizers: make setup EXTRAS=dev,lm; "
            "dataset.tokenizer=words needs nothing"
        ) from error
    return tokenizers
