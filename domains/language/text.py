"""Reads text in WikiText's form: words between white space, `<eos>` at the end of every line.

The rules are those of Transformer-XL's vocabulary (`pytorch/utils/vocabulary.py` of
kimiyoung/transformer-xl at 44781ed), which every later code base kept: case stays, white space is
Unicode's, a blank line is an `<eos>` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from domains.contract import DataCorrupt

EOS = "<eos>"
"""Ends every line."""

UNKNOWN = "<unk>"
"""A word of the published text, where it stands for rare words."""

BLOCK_CHARACTERS = 2**22
"""Text that is held at once while a file is read."""


def read_blocks(path: Path) -> Iterator[list[str]]:
    """Lines of a file with their ends, many at a time.

    Lines end with `\\n`, `\\r\\n` or `\\r` and at nothing else: `str.splitlines` would also cut at
    separators that occur inside a line.

    Raises:
        DataCorrupt: the file is empty or not UTF-8.
    """
    empty = True
    try:
        with path.open(encoding="utf-8") as file:
            while block := file.readlines(BLOCK_CHARACTERS):
                empty = False
                yield block
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"{path} is not UTF-8 text ({error.reason}): damaged") from error
    if empty:
        raise DataCorrupt(f"{path} is empty")


def read_lines(path: Path) -> list[str]:
    """All lines of a file with their ends.

    Raises:
        DataCorrupt: see :func:`read_blocks`.
    """
    return [line for block in read_blocks(path) for line in block]


def split_words(lines: Sequence[str]) -> list[str]:
    """The words of some lines, with `<eos>` behind each line."""
    text = "".join(lines)
    if text and not text.endswith("\n"):  # the last line of a file may lack its end
        text += "\n"
    return text.replace("\n", f" {EOS} ").split()


def article_starts(lines: list[str]) -> list[int]:
    """Lines that are the title of an article: ` = Title = ` between blank lines.

    Section titles have more signs (` = = Section = = `); a formula may begin and end with one, but
    stands inside a paragraph.
    """
    starts = []
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) < 3 or words[0] != "=" or words[-1] != "=":
            continue
        around = "".join(lines[max(0, number - 1) : number] + lines[number + 1 : number + 2])
        if words[1] != "=" and words[-2] != "=" and not around.strip():
            starts.append(number)
    return starts
