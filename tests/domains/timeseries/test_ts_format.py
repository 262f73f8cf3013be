"""The reader of `.ts` files: against sktime's, on damaged files, and in a round trip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from domains.contract import DataCorrupt
from domains.timeseries.sources import locate
from domains.timeseries.ts_format import TsFile, canonical_label, read_ts

HEADER = """#A comment
@problemName Made
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true Up Down
@data
"""


def read(tmp_path: Path, text: str | bytes) -> TsFile:
    path = tmp_path / "Made_TRAIN.ts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_ts(path)


def test_values_lengths_and_labels(tmp_path):
    file = read(tmp_path, HEADER + "1,2.5,-3e-1:4,5,6:Down\n\n7:8:Up\n")
    assert file.classes == ("up", "down")
    assert file.labels.tolist() == [1, 0]
    assert file.lengths.tolist() == [[3, 3], [1, 1]]
    dense = file.dense()
    assert dense.shape == (2, 2, 3)
    np.testing.assert_array_equal(dense[0], [[1, 2.5, -0.3], [4, 5, 6]])
    np.testing.assert_array_equal(dense[1], [[7, np.nan, np.nan], [8, np.nan, np.nan]])


def test_missing_values_in_both_spellings(tmp_path):
    file = read(tmp_path, HEADER + "1,?,3:NaN,5,6:Up\n")
    np.testing.assert_array_equal(file.dense()[0], [[1, np.nan, 3], [np.nan, 5, 6]])


def test_unequal_channels_inside_a_series(tmp_path):
    file = read(tmp_path, HEADER + "1,2,3:4:Up\n5:6,7:Down\n")
    assert file.lengths.tolist() == [[3, 1], [1, 2]]
    np.testing.assert_array_equal(file.dense()[1], [[5, np.nan, np.nan], [6, 7, np.nan]])


@pytest.mark.parametrize(
    ("header", "label"), [("1 2", "1.0"), ("1.0 2.0", "1"), ("a b", "A"), ("A b", "a")]
)
def test_label_styles(tmp_path, header, label):
    text = HEADER.replace("Up Down", header) + f"1:2:{label}\n"
    assert read(tmp_path, text).labels.tolist() == [0]


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    text = HEADER + "1,2:3,4:Up\n5,6:7,8:Down\n"
    plain = read(tmp_path, text)
    windows = read(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    np.testing.assert_array_equal(plain.dense(), windows.dense())
    assert plain.labels.tolist() == windows.labels.tolist()


def test_comment_that_is_no_utf8(tmp_path):
    read(tmp_path, b"# pp 1\x9631\n" + (HEADER + "1:2:Up\n").encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no @data line"),
        ("@problemName X\n@classLabel true a b\n", "no @data line"),
        ("1,2:3,4:a\n", "line 1: values before an @data line"),
        (HEADER, "no series after line 9"),
        (HEADER.replace("true Up Down", "false") + "1:2:Up\n", "no classes in the header"),
        (HEADER.replace("@classLabel true Up Down\n", "") + "1:2:Up\n", "no classes"),
        (HEADER.replace("Up Down", "1 1.0") + "1:2:1\n", "names a class twice"),
        (HEADER.replace("@timeStamps false", "@timeStamps true") + "(0,1):(0,2):Up\n", "time st"),
        (HEADER + "1:2:Up\n1:2:Left\n", "line 11: class label 'Left' is not in the header"),
        (HEADER + "1:2:Up\n1,2:3,4\n", "line 11: 1 channels where the series before have 2"),
        (HEADER + "1:2:Up\n1,2:3,4:5\n", "line 11: class label '5' is not in the header"),
        (HEADER + "1:2:3:Up\n", "line 10: 3 channels, but the header says 2"),
        (HEADER + "1:2:Up\n1,x:2,3:Up\n", "line 11: a value is not a finite number"),
        (HEADER + "1,:2,3:Up\n", "line 10: a value is not a finite number"),
        (HEADER + "1:2:Up\n:2:Up\n", "line 11: a value is not a finite number"),
        (HEADER + "(0,1):2:Up\n", "line 10: a value is not a finite number"),
        (HEADER + "1,inf:2,3:Up\n", "line 10: a value is not a finite number"),
        (
            HEADER.replace("@equalLength false", "@equalLength true") + "1,2:3,4:Up\n1:2:Up\n",
            "line 11: channel 1 has 1 steps, but the header says that all have 2",
        ),
        (
            HEADER.replace("@equalLength false", "@equalLength true\n@seriesLength 3")
            + "1,2:3,4:Up\n",
            "line 11: channel 1 has 2 steps, but the header says that all have 3",
        ),
    ],
)
def test_damaged_file_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(DataCorrupt, match=r"Made_TRAIN\.ts") as error:
        read(tmp_path, text)
    assert message in str(error.value)


def test_every_truncation_inside_the_data_is_noticed_or_ends_at_a_line(tmp_path):
    text = HEADER.replace("@equalLength false", "@equalLength true") + "1,2:3,4:Up\n5,6:7,8:Down\n"
    start = len(text) - len("5,6:7,8:Down\n")
    for end in range(start + 1, len(text) - 1):
        with pytest.raises(DataCorrupt):
            read(tmp_path, text[:end])


@pytest.mark.parametrize(
    "name", ["JapaneseVowels", "BasicMotions", "Handwriting", "UWaveGestureLibrary"]
)
@pytest.mark.parametrize("split", ["TRAIN", "TEST"])
def test_equals_the_reader_of_sktime(name, split):
    sktime_io = pytest.importorskip("sktime.datasets", reason="sktime is not installed")
    files = locate(name)
    if files is None:
        pytest.skip(f"{name} is not in DATA_DIR")
    path = files.train if split == "TRAIN" else files.test
    ours = read_ts(path)
    theirs, labels = sktime_io.load_from_tsfile(str(path), return_data_type="nested_univ")
    assert [canonical_label(label) for label in labels] == [ours.classes[i] for i in ours.labels]
    lengths = np.array([[len(cell) for cell in row] for row in theirs.to_numpy()])
    np.testing.assert_array_equal(ours.lengths, lengths)
    flat = np.concatenate([cell.to_numpy() for row in theirs.to_numpy() for cell in row])
    np.testing.assert_array_equal(ours.values, flat)


finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory, data):
    count, channels = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    lengths = data.draw(hnp.arrays(np.int64, (count, channels), elements=st.integers(1, 5)))
    total = int(lengths.sum())
    values = data.draw(hnp.arrays(np.float64, total, elements=finite | st.just(float("nan"))))
    labels = data.draw(hnp.arrays(np.int64, count, elements=st.integers(0, 2)))
    classes = ("left", "7", "x_y")
    cells = iter(np.split(values, np.cumsum(lengths.ravel())[:-1]))
    rows = []
    for row in range(count):
        texts = [
            ",".join("?" if np.isnan(v) else repr(float(v)) for v in next(cells))
            for _ in range(channels)
        ]
        rows.append(":".join([*texts, classes[labels[row]]]))
    header = HEADER.replace("@dimensions 2", f"@dimensions {channels}")
    text = header.replace("Up Down", " ".join(classes)) + "\n".join(rows) + "\n"
    file = read(tmp_path_factory.mktemp("ts"), text)
    assert file.classes == classes
    np.testing.assert_array_equal(file.labels, labels)
    np.testing.assert_array_equal(file.lengths, lengths)
    np.testing.assert_array_equal(file.values, values)
