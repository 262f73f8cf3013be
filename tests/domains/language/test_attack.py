"""The word swap attack, rule by rule."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
import torch

from domains.language import attack
from domains.language.attack import STOP_WORDS, WORD, swap_words
from domains.language.text import read_lines, split_words


def textattack_words(text: str) -> list[str]:
    """TextAttack 0.3.10's rule for lines without Chinese, spelt out."""
    pattern = "[\\w\u02d7`\u00d7'\\-_\\*@]+"
    words = []
    for token in text.split():
        words += [part.lstrip("'-_*@") for part in re.findall(pattern, token.lstrip("'-_*@"))]
    return [word for word in words if word]


LINES = [
    " = Robert Boulter = \n",
    " \n",
    " In 2006 , the <unk> 's U.S. crew of 1 @,@ 500 met @-@ well , \" don 't \" . \n",
    " the of and \n",
    " AAA \n",
    " __init__ -x- a_b \u00d7 \u00bd \u2013 x'y' *z @@ \n",
]


@pytest.mark.parametrize("line", LINES)
def test_words_are_those_of_textattack(line):
    assert WORD.findall(line) == textattack_words(line)


def test_punctuation_is_no_word_and_parts_of_tokens_are():
    line = LINES[2]
    words = ["In", "2006", "the", "unk", "s", "U", "S", "crew", "of", "1", "500", "met", "well"]
    assert WORD.findall(line) == [*words, "don", "t"]


def test_real_lines_have_the_words_of_textattack(data_dir):
    path = data_dir / "text" / "wikitext-103" / "wiki.test.tokens"
    if not path.is_file():
        pytest.skip("text/wikitext-103/wiki.test.tokens is not in DATA_DIR")
    for line in read_lines(path):
        assert WORD.findall(line) == textattack_words(line)


@pytest.mark.parametrize("percent", [1.5, 2.5, 5.0])
def test_number_of_swaps_a_line(percent):
    """max(1, floor(rate * words)), stop words counted; less where fewer words may be swapped."""
    lines = [" ".join(f"w{i}" for i in range(n)) + "\n" for n in range(1, 250)]
    copy = swap_words(lines, percent, "textattack", seed=0)
    found = [line.split().count("AAA") for line in copy.lines]
    # Spelt out in whole numbers: rates have one decimal.
    assert found == [max(1, n * round(10 * percent) // 1000) for n in range(1, 250)]
    assert copy.swaps == sum(found)
    assert copy.words == len(split_words(lines))
    mixed = " ".join(["the", "cat"] * 60) + "\n"
    assert swap_words([mixed], percent, "textattack", 0).swaps == int(1.2 * percent)
    crowded = " ".join(["the"] * 100) + " cat\n"
    assert swap_words([crowded], 5.0, "textattack", 0).lines[0].split() == ["the"] * 100 + ["AAA"]


def test_lines_without_a_word_to_swap_stay():
    for mode in ("textattack", "token"):
        for line in (" \n", " the of and \n", " AAA \n", " , . @-@ = \n"):
            copy = swap_words([line], 100.0, mode, 0)
            assert copy.lines == (line,)
            assert copy.swaps == 0


def test_stop_words_are_told_by_case():
    copy = swap_words(["The the THE\n"], 100.0, "textattack", 0)
    assert copy.lines == ("AAA the AAA\n",)


def test_parts_of_tokens_are_swapped_alone():
    copy = swap_words([" <unk> of U.S. \n"], 100.0, "textattack", 0)
    assert copy.lines == (" <AAA> of AAA.AAA. \n",)
    assert copy.swaps == 3
    assert swap_words([" <unk> of U.S. \n"], 100.0, "token", 0).lines == (" AAA of AAA \n",)


def test_words_are_drawn_uniformly_without_replacement():
    line = "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9\n"
    copy = swap_words([line] * 6000, 30.0, "textattack", 0)
    drawn = Counter(i for line in copy.lines for i, w in enumerate(line.split()) if w == "AAA")
    assert copy.swaps == 18_000
    # 1,800 each; a standard deviation is 35.5.
    assert all(abs(drawn[i] - 1800) < 4 * 35.5 for i in range(10)), drawn


def test_tokens_are_swapped_with_the_probability_of_the_rate():
    copy = swap_words(["the w1 , w2\n"] * 20_000, 5.0, "token", 0)
    # 40,000 tokens may be swapped; a standard deviation is 43.6.
    assert abs(copy.swaps - 2000) < 4 * 43.6
    assert copy.swaps == sum(line.split().count("AAA") for line in copy.lines)


@pytest.mark.parametrize("mode", ["textattack", "token"])
def test_a_copy_depends_on_seed_rate_and_mode_alone(mode):
    lines = [" ".join(f"w{i}" for i in range(60)) + "\n"] * 50
    torch.manual_seed(1)
    random.seed(1)
    one = swap_words(lines, 5.0, mode, 0)
    assert swap_words(lines, 5.0, mode, 0) == one
    assert swap_words(lines, 5, mode, 0) == one
    assert swap_words(lines, 5.0, mode, 1) != one


def test_swaps_keep_the_number_of_tokens():
    copy = swap_words(LINES, 50.0, "textattack", 0)
    assert len(split_words(copy.lines)) == len(split_words(LINES)) == copy.words


def test_the_list_of_stop_words_is_complete():
    assert len(STOP_WORDS) == 179
    assert {"s", "t", "ma", "y", "don't", "wouldn"} <= STOP_WORDS
    assert not {"also", "one", "would", "The"} & STOP_WORDS
    assert attack.SWAPPED_TO not in STOP_WORDS
