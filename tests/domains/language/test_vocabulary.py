"""Vocabularies and their order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from domains.contract import DataCorrupt
from domains.language.vocabulary import BytePairs, Words

TEXT = [" b a <unk> \n", " c a d \n", " \n", " d e b \n"]


def test_words_are_in_the_order_of_the_reference():
    """Falling frequency; of equally frequent words the one that comes first is first."""
    words = Words.learn(lambda: [TEXT])
    # b, a and d occur twice, <unk>, c and e once. <eos>, four times, is first whatever its count.
    assert words.words == ("<eos>", "b", "a", "d", "<unk>", "c", "e")


def test_eos_is_first_even_where_other_words_are_more_frequent():
    words = Words.learn(lambda: [["a a a b\n"]])
    assert words.words == ("<eos>", "a", "b")


def test_order_does_not_depend_on_the_blocks():
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in rng.zipf(1.5, 9) if n < 500) + "\n" for _ in range(300)]
    whole = Words.learn(lambda: [lines])
    assert Words.learn(lambda: [[line] for line in lines]).words == whole.words
    # The reference, spelt out: line by line, without <eos>, then most_common.
    counter: Counter[str] = Counter()
    for line in lines:
        counter.update(line.strip().split())
    assert whole.words == ("<eos>", *(word for word, _ in counter.most_common()))


def test_encoding_and_what_is_not_in_the_vocabulary():
    words = Words.learn(lambda: [TEXT])
    encoded = words.encode([" a new word \n", " d \n"])
    assert encoded.tokens.tolist() == [2, 4, 4, 0, 3, 0]
    assert encoded.tokens.dtype == np.int32
    assert encoded.unknown == 2
    assert words.encode([" <unk> \n"]).unknown == 0


def test_an_unknown_word_without_unk_is_refused():
    words = Words.learn(lambda: [["a b\n"]])
    with pytest.raises(DataCorrupt, match=r"the word 'c' is not in the training text.*no <unk>"):
        words.encode(["a c\n"])


def test_words_are_saved_and_read(tmp_path):
    words = Words.learn(lambda: [[" \u2013 caf\u00e9 <unk> \u200b \" ' \\n \n"]])
    words.save(tmp_path)
    assert Words.load(tmp_path).words == words.words


def test_byte_pairs_code_any_text_and_come_back(tmp_path):
    pytest.importorskip("tokenizers", reason="the extra 'lm' is not installed")
    lines = ["the cat sat on the mat\n", "the hat <unk> that\n"] * 20
    pairs = BytePairs.learn(lambda: [lines], 300)
    assert 258 < pairs.size <= 300
    encoded = pairs.encode(["the cat\n", " \n", "\u4e2d <unk>\n"])
    assert encoded.unknown == 0
    assert (encoded.tokens == 0).sum() == 3  # <eos> behind every line
    assert (encoded.tokens == 1).sum() == 1  # <unk> is one entry
    assert encoded.tokens.max() < pairs.size
    pairs.save(tmp_path)
    again = BytePairs.load(tmp_path)
    assert again.size == pairs.size
    assert again.encode(lines).tokens.tolist() == pairs.encode(lines).tokens.tolist()
    assert BytePairs.learn(lambda: [lines], 300).encode(lines).tokens.tolist() == (
        pairs.encode(lines).tokens.tolist()
    )


def test_byte_pairs_without_the_library_say_what_to_do(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"dataset\.tokenizer=bpe needs the package tokenizers"):
        BytePairs.learn(lambda: [TEXT], 300)
