"""Lines, words and articles."""

from __future__ import annotations

import pytest

from domains.contract import DataCorrupt
from domains.language import text
from domains.language.text import article_starts, read_blocks, read_lines, split_words


def test_every_line_ends_with_eos_and_a_blank_one_is_nothing_else():
    lines = [" \n", " = Title = \n", "\n", " The <unk> , 2 @.@ 5 \n", "last"]
    found = " ".join(split_words(lines))
    assert found == "<eos> = Title = <eos> <eos> The <unk> , 2 @.@ 5 <eos> last <eos>"
    assert split_words([]) == []


def test_words_are_split_at_unicode_white_space_as_by_the_reference():
    line = " a\u00a0b\u3000c\u2009d\u200be \u0085f\tg \n"
    assert split_words([line]) == [*line.strip().split(), "<eos>"]
    assert split_words([line])[:4] == ["a", "b", "c", "d\u200be"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_at_line_ends_alone(tmp_path, end):
    """U+2028 and U+0085 are cut at by `str.splitlines`, not by a reference that reads a file."""
    path = tmp_path / "wiki.test.tokens"
    path.write_bytes(end.join(["one\u2028still one", "two\u0085still two", ""]).encode())
    assert read_lines(path) == ["one\u2028still one\n", "two\u0085still two\n"]


def test_blocks_hold_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_CHARACTERS", 20)
    path = tmp_path / "wiki.train.tokens"
    lines = [f" line number {i} \n" for i in range(10)]
    path.write_text("".join(lines))
    blocks = list(read_blocks(path))
    assert len(blocks) > 2
    assert [line for block in blocks for line in block] == lines


def test_a_file_that_is_no_text_or_empty_is_named(tmp_path):
    path = tmp_path / "wiki.test.tokens"
    path.write_bytes(b"good \xff bad")
    with pytest.raises(DataCorrupt, match=r"wiki\.test\.tokens is not UTF-8"):
        read_lines(path)
    path.write_bytes(b"")
    with pytest.raises(DataCorrupt, match=r"wiki\.test\.tokens is empty"):
        read_lines(path)


def test_titles_of_articles_are_neither_sections_nor_formulas():
    lines = [
        " \n",
        " = First = \n",
        " \n",
        " = = Section = = \n",
        " \n",
        " where C is \n",
        " = 1 henry and capacitance C = \n",
        " 1 farad \n",
        " \n",
        " = Second \u2013 part = \n",
        " \n",
        " = \n",
    ]
    assert article_starts(lines) == [1, 9]


def test_published_files_have_the_published_numbers_of_tokens_and_articles(data_dir):
    folder = data_dir / "text" / "wikitext-103"
    if not folder.is_dir():
        pytest.skip("text/wikitext-103 is not in DATA_DIR")
    for split, tokens in (("valid", 217_646), ("test", 245_569)):
        lines = read_lines(folder / f"wiki.{split}.tokens")
        assert len(split_words(lines)) == tokens
        assert len(article_starts(lines)) == 60
