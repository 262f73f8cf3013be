"""Reader of the `.ts` files of the time-series classification archive.

A header of `@key value` lines is followed by one series a line: channels separated by colons,
the values of a channel by commas, the class label behind the last colon. Missing values are `?`.
Written anew because the reader of sktime has moved between releases and is slow; compared with
it in `tests/domains/timeseries/test_ts_format.py`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from domains.contract import DataCorrupt


@dataclass(frozen=True)
class TsFile:
    """Content of a file with n series of C channels.

    Attributes:
        classes: class names in the order of the header, in canonical spelling
            (:func:`canonical_label`).
        labels: (n,) int64, index into `classes`.
        lengths: (n, C) int64, steps of every channel.
        values: float64, all values in file order (series, channel, step); NaN where missing.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    lengths: NDArray[np.int64]
    values: NDArray[np.float64]

    def dense(self) -> NDArray[np.float64]:
        """(n, C, longest) values, NaN where missing and behind the end of a channel."""
        inside = np.arange(self.lengths.max()) < self.lengths[..., None]
        dense = np.full(inside.shape, np.nan)
        dense[inside] = self.values
        return dense


def canonical_label(label: str) -> str:
    """One spelling for labels that name the same class: `Walking` is `walking`, `1.0` is `1`."""
    try:
        number = float(label)
    except ValueError:
        return label.lower()
    return str(int(number)) if number.is_integer() else label.lower()


def read_ts(path: Path) -> TsFile:
    """Read a file.

    Raises:
        DataCorrupt: the file is damaged, or of a kind that is not read here (time stamps,
            regression targets); the message names the file and, where there is one, the line.
    """
    # Comments of published files hold bytes that are not UTF-8 (Handwriting); numbers never do.
    lines = path.read_bytes().splitlines()
    header, start = _read_header(path, lines)
    classes = _classes(path, header)
    rows = [
        (number, line.strip())
        for number, line in enumerate(lines[start:], start + 1)
        if line.strip() and not line.startswith(b"#")
    ]
    if not rows:
        raise DataCorrupt(f"{path}: no series after line {start}: truncated?")

    index = {label: code for code, label in enumerate(classes)}
    labels = np.empty(len(rows), np.int64)
    lengths: list[list[int]] = []
    texts: list[bytes] = []
    for row, (number, line) in enumerate(rows):
        text, _, label = line.rpartition(b":")
        channels = text.split(b":")
        if row and len(channels) != len(lengths[0]):
            raise DataCorrupt(
                f"{path}, line {number}: {len(channels)} channels where the series before have "
                f"{len(lengths[0])}: truncated?"
            )
        code = index.get(canonical_label(label.strip().decode("latin-1")))
        if code is None:
            shown = label[:40].decode("latin-1")
            raise DataCorrupt(
                f"{path}, line {number}: class label '{shown}' is not in the header's @classLabel "
                f"({', '.join(classes)}): truncated?"
            )
        labels[row] = code
        lengths.append([channel.count(b",") + 1 for channel in channels])
        texts.append(text)
    numbers = [number for number, _ in rows]
    counts = np.array(lengths, np.int64)
    _check_header(path, header, counts, numbers)
    values = _parse_values(path, texts, counts, numbers)
    return TsFile(classes, labels, counts, values)


def _read_header(path: Path, lines: list[bytes]) -> tuple[dict[str, str], int]:
    """Header entries with lower-case keys, and the index of the first line after `@data`."""
    header: dict[str, str] = {}
    for position, line in enumerate(lines):
        text = line.decode("latin-1").strip().removeprefix("\u00ef\u00bb\u00bf")
        if not text or text.startswith(("#", "%")):
            continue
        if not text.startswith("@"):
            raise DataCorrupt(
                f"{path}, line {position + 1}: values before an @data line: the header is missing "
                "or truncated"
            )
        key, _, value = text[1:].partition(" ")
        if key.lower() == "data":
            return header, position + 1
        header[key.lower()] = value.strip()
    raise DataCorrupt(f"{path}: no @data line: not a .ts file, or truncated")


def _classes(path: Path, header: dict[str, str]) -> tuple[str, ...]:
    if header.get("timestamps", "false").lower() == "true":
        raise DataCorrupt(
            f"{path}: the series have time stamps (@timeStamps true), which are not supported; "
            "supply the set in the form with equally spaced steps"
        )
    flag, *names = header.get("classlabel", "false").split()
    if flag.lower() != "true" or not names:
        raise DataCorrupt(f"{path}: no classes in the header (@classLabel true NAME NAME ...)")
    classes = tuple(canonical_label(name) for name in names)
    if len(set(classes)) < len(classes):
        raise DataCorrupt(f"{path}: @classLabel names a class twice: {' '.join(names)}")
    return classes


def _check_header(
    path: Path, header: dict[str, str], lengths: NDArray[np.int64], numbers: list[int]
) -> None:
    """Compare channels and lengths with what the header says."""
    channels = lengths.shape[1]
    stated = header.get("dimensions", header.get("dimension"))
    if stated is not None and stated != str(channels):
        raise DataCorrupt(
            f"{path}, line {numbers[0]}: {channels} channels, but the header says {stated}"
        )
    if header.get("equallength", "false").lower() != "true":
        return
    expected = header.get("serieslength", str(lengths[0, 0]))
    wrong = np.argwhere(lengths.astype(np.str_) != expected)
    if len(wrong):
        row, channel = wrong[0]
        raise DataCorrupt(
            f"{path}, line {numbers[row]}: channel {channel + 1} has {lengths[row, channel]} "
            f"steps, but the header says that all have {expected}: truncated?"
        )


def _parse_values(
    path: Path, texts: list[bytes], lengths: NDArray[np.int64], numbers: list[int]
) -> NDArray[np.float64]:
    """All values of all series by one call; line by line only to find the one that is damaged."""
    values = _numbers(b",".join(texts), lengths.sum())
    if values is not None:
        return values
    damaged = (
        number
        for number, text, count in zip(numbers, texts, lengths.sum(1), strict=True)
        if _numbers(text, count) is None
    )
    raise DataCorrupt(f"{path}, line {next(damaged)}: a value is not a finite number")


def _numbers(text: bytes, count: int) -> NDArray[np.float64] | None:
    """`count` comma- or colon-separated numbers; None if a part is none, or infinite."""
    plain = text.replace(b":", b",").replace(b"?", b"nan").decode("latin-1")
    with warnings.catch_warnings():
        # numpy announces text that it cannot read by a DeprecationWarning.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(plain, dtype=np.float64, sep=",")
        except (DeprecationWarning, ValueError):
            return None
    return None if len(values) != count or np.isinf(values).any() else values
