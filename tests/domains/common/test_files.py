"""Finding files."""

from __future__ import annotations

from pathlib import Path

import pytest

from domains.common import files


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A DATA_DIR and a CACHE_DIR, empty."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    for variable, folder in (("DATA_DIR", data), ("CACHE_DIR", cache)):
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    return data, cache


def test_folders_are_found_in_data_dir_first_and_the_least_deep_first(roots):
    data, cache = roots
    for folder in (cache / "set", data / "a" / "b" / "set", data / "c" / "set"):
        folder.mkdir(parents=True)
    assert list(files.folders_named("set")) == [
        ("DATA_DIR: c/set", data / "c" / "set"),
        ("DATA_DIR: a/b/set", data / "a" / "b" / "set"),
        ("CACHE_DIR: set", cache / "set"),
    ]


def test_a_download_under_way_is_not_found(roots):
    (roots[1] / "language" / ".set-abc" / "set").mkdir(parents=True)
    assert not list(files.folders_named("set"))


def test_a_file_of_the_name_is_no_folder(roots):
    (roots[0] / "set").write_text("")
    assert not list(files.folders_named("set"))
