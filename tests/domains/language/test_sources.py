"""Where the files of a text are found, and what is said when they are not."""

from __future__ import annotations

import socket
import zipfile
from pathlib import Path

import pytest
import yaml

from domains.common.files import sha256
from domains.contract import DataCorrupt, DataUnavailable
from domains.language import sources
from domains.language.config import DatasetConfig

CONF = Path(__file__).parents[3] / "conf" / "dataset" / "language"
NAMES = [path.stem for path in sorted(CONF.glob("*.yaml"))]


def dataset(name: str, **options: object) -> DatasetConfig:
    """A data set as its YAML describes it, with changes."""
    return DatasetConfig(**{**yaml.safe_load((CONF / f"{name}.yaml").read_text()), **options})


def made(**options: object) -> DatasetConfig:
    return DatasetConfig(**{"name": "made", "folder": "made-1", **options})


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """An empty DATA_DIR; CACHE_DIR is not there yet."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


def write_text(folder: Path, *splits: str) -> Path:
    folder.mkdir(parents=True)
    for split in splits or ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(f" \n = {split} = \n \n")
    return folder


def archive_of(folder: Path, path: Path) -> dict[str, object]:
    """Options of a data set that is fetched from a zip of a folder."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"{folder.name}/{file.name}")
    return {"url": path.as_uri(), "sha256": {"archive": sha256(path)}}


@pytest.mark.parametrize("name", NAMES)
def test_configurations_are_complete(name):
    config = dataset(name)
    assert config.name == name
    assert set(config.tokens) >= set(sources.needed(config))
    assert config.url.endswith("-v1.zip")
    assert len(config.sha256["archive"]) == 64
    assert config.source
    assert config.licence


def test_numbers_of_wikitext103_are_the_published_ones():
    config = dataset("wikitext103")
    assert config.tokens == {"train": 103_227_021, "valid": 217_646, "test": 245_569}
    assert config.vocabulary == 267_735


def test_other_data_never_bears_the_name_of_the_published_one():
    with pytest.raises(ValueError, match=r"dataset\.name='wikitext103' must hold 'valid_as_train'"):
        dataset("wikitext103", split="valid_as_train")
    with pytest.raises(ValueError, match=r"dataset\.name='wikitext103' must hold 'bpe'"):
        dataset("wikitext103", tokenizer="bpe")
    with pytest.raises(ValueError, match="must not without"):
        dataset("wikitext103_valid_as_train", split="official")


@pytest.mark.parametrize("folder", ["made-1", "text/made-1", "a/b/c/made-1"])
def test_found_anywhere_under_data_dir(roots, folder):
    write_text(roots / folder)
    files = sources.locate(made())
    assert files is not None
    assert files.paths["train"] == roots / folder / "wiki.train.tokens"
    assert files.source == f"DATA_DIR: {folder}/wiki.{{train,valid,test}}.tokens"


def test_files_of_two_folders_are_not_mixed(roots):
    write_text(roots / "a" / "made-1", "train")
    write_text(roots / "b" / "made-1", "valid", "test")
    assert sources.locate(made()) is None
    complete = write_text(roots / "c" / "made-1")
    files = sources.locate(made())
    assert files is not None
    assert {path.parent for path in files.paths.values()} == {complete}


def test_valid_as_train_needs_no_training_file(roots):
    write_text(roots / "made-1", "valid", "test")
    config = made(name="made_valid_as_train", split="valid_as_train")
    files = sources.locate(config)
    assert files is not None
    assert set(files.paths) == {"valid", "test"}
    assert sources.require(config).kind == "sample"


def test_missing_text_says_which_file_to_put_where(roots, offline):
    config = made(url="https://example.org/made-v1.zip", sha256={"archive": "00"})
    with pytest.raises(DataUnavailable, match=r"made-v1\.zip holds them\.$"):
        sources.fetch(config)
    write_text(roots / "text" / "made-1", "valid", "test")
    for attempt in (sources.require, sources.fetch):
        with pytest.raises(DataUnavailable) as error:
            attempt(config)
        message = str(error.value)
        assert "Put wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens" in message
        assert f"folder made-1/ anywhere under DATA_DIR (now {roots})" in message
        assert "https://example.org/made-v1.zip holds them" in message
        assert "DATA_DIR: text/made-1 lacks wiki.train.tokens" in message


def test_the_raw_version_is_told_by_its_files(roots):
    folder = write_text(roots / "made-1", "valid")
    (folder / "wiki.train.raw").write_text("text\n")
    for attempt in (sources.require, sources.fetch):
        with pytest.raises(DataUnavailable, match="are those of the raw version"):
            attempt(made())


def test_download_is_verified_and_moved_into_place(roots, tmp_path):
    origin = write_text(tmp_path / "made-1")
    config = made(**archive_of(origin, tmp_path / "made.zip"))
    files = sources.fetch(config)
    folder = tmp_path / "cache" / "language" / "made-1"
    assert {path.parent for path in files.paths.values()} == {folder}
    assert files.source == "CACHE_DIR: language/made-1/wiki.{train,valid,test}.tokens"
    for name in ("train", "valid", "test"):
        file = f"wiki.{name}.tokens"
        assert (folder / file).read_bytes() == (origin / file).read_bytes()
    assert sorted(path.name for path in folder.parent.iterdir()) == [".made-1.lock", "made-1"]


def test_a_fetched_folder_that_lost_a_file_is_named(roots, tmp_path):
    folder = write_text(tmp_path / "cache" / "language" / "made-1", "valid", "test")
    config = made(url="https://example.org/made-v1.zip", sha256={"archive": "00"})
    with pytest.raises(DataCorrupt, match=f"{folder} exists but does not hold the files"):
        sources.fetch(config)


@pytest.mark.parametrize("fault", ["other file", "no zip", "file missing"])
def test_a_wrong_download_is_named_and_leaves_nothing(roots, tmp_path, fault):
    origin = write_text(tmp_path / "made-1", *(["valid"] if fault == "file missing" else []))
    options = archive_of(origin, tmp_path / "made.zip")
    expected = "is no zip file with wiki.train.tokens"
    if fault == "other file":
        options["sha256"], expected = {"archive": "00"}, r"made\.zip has SHA-256 .*, expected 00"
    if fault == "no zip":
        (tmp_path / "made.zip").write_text("<html>moved</html>")
        options["sha256"] = {"archive": sha256(tmp_path / "made.zip")}
    with pytest.raises(DataCorrupt, match=expected):
        sources.fetch(made(**options))
    left = [path.name for path in (tmp_path / "cache" / "language").iterdir()]
    assert left == [".made-1.lock"]


def test_nothing_is_fetched_unverified(roots):
    with pytest.raises(ValueError, match=r"needs dataset\.sha256\.archive"):
        sources.fetch(made(url="https://example.org/made-v1.zip"))


def test_a_download_without_a_writable_cache_names_it(roots, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "file" / "cache"))
    config = made(url="https://example.org/made-v1.zip", sha256={"archive": "00"})
    with pytest.raises(DataUnavailable, match=r"CACHE_DIR, now .* cannot be written to"):
        sources.fetch(config)


@pytest.mark.parametrize("folder", ["", "../etc", "a/b", "*"])
def test_a_folder_that_is_no_name_is_refused(roots, folder):
    with pytest.raises(ValueError, match=r"dataset\.folder=.* is no name of a folder"):
        sources.locate(made(folder=folder))
