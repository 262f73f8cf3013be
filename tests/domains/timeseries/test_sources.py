"""Where the files of a set are found, and how far they are trusted."""

from __future__ import annotations

import shutil
import socket
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from domains.common.files import sha256
from domains.contract import DataCorrupt, DataUnavailable
from domains.timeseries import sources
from domains.timeseries.config import DatasetConfig

CONF = Path(__file__).parents[3] / "conf" / "dataset" / "timeseries"

FILE = """@problemName Made
@timeStamps false
@classLabel true a b
@data
1,2:3,4:a
5,6:7,{last}:b
"""


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """An empty DATA_DIR and CACHE_DIR."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "data"


def write_set(folder: Path, name: str = "Made") -> Path:
    folder.mkdir(parents=True)
    for split, last in (("TRAIN", 8), ("TEST", 9)):
        (folder / f"{name}_{split}.ts").write_text(FILE.format(last=last))
    return folder


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def made_config(**options) -> DatasetConfig:
    return DatasetConfig(name="Made", **options)


def zip_of(folder: Path, path: Path) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"inner/{file.name}")
    return path.as_uri()


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.parametrize("folder", ["Made", "uea/Made", "a/b/c/Made"])
def test_found_anywhere_under_data_dir(data_dir, folder):
    write_set(data_dir / folder)
    files = sources.locate("Made")
    assert files is not None
    assert files.train == data_dir / folder / "Made_TRAIN.ts"
    assert files.source == f"DATA_DIR: {folder}/Made_{{TRAIN,TEST}}.ts"


def test_half_a_set_is_not_found(data_dir):
    (write_set(data_dir / "Made") / "Made_TEST.ts").unlink()
    assert sources.locate("Made") is None


@pytest.mark.parametrize("name", ["JapaneseVowels", "BasicMotions"])
def test_sktime_ships_the_published_files(data_dir, name):
    config = DatasetConfig(**yaml.safe_load((CONF / f"{name}.yaml").read_text()))
    loaded = sources.load(config)
    assert loaded.kind == "real"
    assert loaded.source.startswith("sktime package: ")
    assert loaded.notes == ()


@pytest.mark.parametrize("name", ["Handwriting", "UWaveGestureLibrary"])
def test_files_of_data_dir_are_the_published_ones(name):
    if sources.locate(name) is None:
        pytest.skip(f"{name} is not in DATA_DIR")
    config = DatasetConfig(**yaml.safe_load((CONF / f"{name}.yaml").read_text()))
    loaded = sources.load(config)
    assert loaded.kind == "real"
    longest = max(loaded.train.lengths.max(), loaded.test.lengths.max())
    found = (len(loaded.train.labels), len(loaded.test.labels), longest, len(loaded.train.classes))
    assert found == (config.train, config.test, config.length, config.classes)


def test_file_that_differs_from_its_checksum_is_a_sample(data_dir):
    folder = write_set(data_dir / "Made")
    pinned = {s: sha256(folder / f"Made_{s}.ts") for s in ("TRAIN", "TEST")}
    assert sources.load(made_config(sha256=pinned)).kind == "real"
    (folder / "Made_TEST.ts").write_text(FILE.format(last=0))
    loaded = sources.load(made_config(sha256=pinned))
    assert loaded.kind == "sample"
    assert loaded.notes == ("TEST differ from the published files (SHA-256)",)


def test_set_without_checksum_is_judged_by_its_sizes(data_dir):
    write_set(data_dir / "Made")
    sizes = {"train": 2, "test": 2, "channels": 2, "classes": 2}
    assert sources.load(made_config(**sizes)).kind == "real"
    loaded = sources.load(made_config(**{**sizes, "test": 3}))
    assert loaded.kind == "sample"
    assert "2 / 2 / 2 / 2, published 2 / 3 / 2 / 2" in loaded.notes[0]
    assert sources.load(made_config()).kind == "sample"


def test_missing_set_without_network_says_which_file_to_put_where(data_dir, offline):
    for attempt in (lambda: sources.require(made_config()), lambda: sources.load(made_config())):
        with pytest.raises(DataUnavailable) as error:
            attempt()
        assert "Made_TRAIN.ts and Made_TEST.ts into a folder Made/" in str(error.value)
        assert str(data_dir) in str(error.value)


def test_unanswered_name_look_up_does_not_hang(data_dir, monkeypatch):
    finished = threading.Event()

    def hang(*args, **kwargs):
        finished.wait()
        raise OSError("name look-up failed")

    monkeypatch.setattr(socket, "create_connection", hang)
    start = time.perf_counter()
    with pytest.raises(DataUnavailable):
        sources.require(made_config())
    finished.set()
    assert time.perf_counter() - start < 1.5


def test_download_is_verified_and_moved_into_place(data_dir, tmp_path, monkeypatch):
    origin = write_set(tmp_path / "origin")
    monkeypatch.setattr(sources, "ARCHIVE_URL", zip_of(origin, tmp_path / "Made.zip"))
    pinned = {s: sha256(origin / f"Made_{s}.ts") for s in ("TRAIN", "TEST")}
    assert sources.load(made_config(sha256=pinned)).kind == "real"
    cache = tmp_path / "cache" / "timeseries"
    assert visible(cache) == ["Made"]
    assert visible(cache / "Made") == ["Made_TEST.ts", "Made_TRAIN.ts"]
    assert sources.load(made_config()).source == "CACHE_DIR: timeseries/Made/Made_{TRAIN,TEST}.ts"


def test_download_that_differs_from_its_checksum_leaves_nothing(data_dir, tmp_path, monkeypatch):
    origin = write_set(tmp_path / "origin")
    monkeypatch.setattr(sources, "ARCHIVE_URL", zip_of(origin, tmp_path / "Made.zip"))
    with pytest.raises(DataCorrupt, match="expected 00"):
        sources.load(made_config(sha256={"TRAIN": "00"}))
    assert visible(tmp_path / "cache" / "timeseries") == []


def test_download_that_is_no_zip_is_named(data_dir, tmp_path, monkeypatch):
    page = tmp_path / "Made.zip"
    page.write_text("<html>maintenance</html>")
    monkeypatch.setattr(sources, "ARCHIVE_URL", page.as_uri())
    with pytest.raises(DataCorrupt, match="is no zip file"):
        sources.load(made_config())


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "Made.ts"])
def test_name_that_is_no_set_is_refused(name):
    with pytest.raises(ValueError, match="no name of a UEA set"):
        sources.locate(name)


def test_large_files_are_parsed_once_and_a_damaged_cache_is_rebuilt(
    data_dir, tmp_path, monkeypatch, caplog
):
    write_set(data_dir / "Made")
    monkeypatch.setattr(sources, "CACHE_FROM_BYTES", 0)
    first = sources.load(made_config())
    parsed = tmp_path / "cache" / "timeseries"
    assert len(visible(parsed)) == 2

    def never(path):
        raise AssertionError("parsed again")

    with monkeypatch.context() as patched:
        patched.setattr(sources, "read_ts", never)
        second = sources.load(made_config())
    assert second.train.classes == first.train.classes
    np.testing.assert_array_equal(second.test.dense(), first.test.dense())

    for path in parsed.glob("*/values.npy"):
        path.write_bytes(path.read_bytes()[:100])
    third = sources.load(made_config())
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(third.test.dense(), first.test.dense())


def test_changed_large_file_is_not_taken_from_the_cache(data_dir, monkeypatch):
    folder = write_set(data_dir / "Made")
    monkeypatch.setattr(sources, "CACHE_FROM_BYTES", 0)
    sources.load(made_config())
    (folder / "Made_TEST.ts").write_text(FILE.format(last=0))
    assert sources.load(made_config()).test.values[-1] == 0


def test_truncated_file_of_a_real_set_is_named(data_dir):
    origin = sources.locate("JapaneseVowels")
    assert origin is not None
    folder = data_dir / "JapaneseVowels"
    folder.mkdir(parents=True)
    shutil.copy(origin.test, folder)
    (folder / "JapaneseVowels_TRAIN.ts").write_bytes(origin.train.read_bytes()[:100_000])
    with pytest.raises(DataCorrupt, match=r"JapaneseVowels_TRAIN\.ts, line \d+"):
        sources.load(DatasetConfig(name="JapaneseVowels"))


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """A CACHE_DIR that nobody, not even root, can write to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "file" / "cache"))


def test_an_unwritable_cache_does_not_keep_from_files_at_hand(
    data_dir, no_cache, monkeypatch, caplog
):
    write_set(data_dir / "Made")
    monkeypatch.setattr(sources, "CACHE_FROM_BYTES", 0)
    assert sources.load(made_config()).test.values[-1] == 9
    assert "CACHE_DIR cannot be used" in caplog.text


def test_a_download_without_a_writable_cache_names_it(data_dir, no_cache):
    with pytest.raises(DataUnavailable, match=r"CACHE_DIR, now .* cannot be written to"):
        sources.load(made_config())
