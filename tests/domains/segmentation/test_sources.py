"""Where pictures and masks are found, paired, fetched, and what is said when they are not."""

from __future__ import annotations

import socket
import zipfile

import numpy as np
import pytest

from domains.common.files import checksum, sha256
from domains.contract import DataCorrupt, DataUnavailable
from domains.segmentation import ade20k, sources
from domains.segmentation.camvid import listed
from domains.segmentation.folders import paired
from tests.domains.segmentation.files import CONF, dataset, save, write_set

NAMES = [path.stem for path in sorted(CONF.glob("*.yaml"))]
SPOT = np.zeros((2, 2), np.uint8)


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


def mine(**options):
    return dataset("folder", **{"name": "mine", "folder": "mine", "classes": 3, **options})


@pytest.mark.parametrize("name", NAMES)
def test_configurations_are_complete(name):
    config = dataset(name)
    assert config.name == name
    assert config.source
    if name != "folder":
        assert config.licence
        assert config.pictures.keys() == {"train", "val"}
        assert len(set(config.class_names)) == config.classes


def test_ade20k_has_the_published_numbers():
    config = dataset("ade20k")
    assert config.pictures == {"train": 20_210, "val": 2_000}
    assert config.classes == 150
    assert config.reduce_zero_label
    assert config.url == ade20k.URL
    assert len(ade20k.SHA1) == 40
    assert [config.class_names[place] for place in (0, 58, 130, 149)] == [
        "wall",
        "screen door",
        "screen",
        "flag",
    ]


def test_a_part_of_a_set_is_no_real_data():
    assert {name: sources.kind(dataset(name)) for name in NAMES} == {
        "ade20k": "real",
        "ade20k_coarse5": "sample",
        "camvid": "real",
        "camvid_sample": "sample",
        "folder": "real",
    }


def test_pairs_are_made_by_stems(tmp_path):
    for name in ("b.JPG", "a.png", ".hidden.png"):
        save(np.zeros((2, 2, 3), np.uint8), tmp_path / "images" / name.replace("JPG", "jpeg"))
    for name in ("a.png", "b.png"):
        save(SPOT, tmp_path / "masks" / name)
    (tmp_path / "images" / "notes.txt").write_text("")
    pairs = paired(tmp_path / "images", tmp_path / "masks")
    assert [(pair.name, pair.image.name, pair.mask.name) for pair in pairs] == [
        ("a", "a.png", "a.png"),
        ("b", "b.jpeg", "b.png"),
    ]


@pytest.mark.parametrize(
    ("images", "masks", "message"),
    [
        ("abcde", "a", "masks holds no mask for b, c, d and 1 more"),
        ("a", "ab", "images holds no picture for b"),
    ],
)
def test_files_without_a_partner_are_refused(tmp_path, images, masks, message):
    for folder, names in (("images", images), ("masks", masks)):
        for name in names:
            save(SPOT, tmp_path / folder / f"{name}.png")
    with pytest.raises(DataCorrupt, match=message):
        paired(tmp_path / "images", tmp_path / "masks")


def test_two_files_of_one_stem_are_refused(tmp_path):
    save(SPOT, tmp_path / "images" / "a.png")
    save(SPOT, tmp_path / "images" / "a.jpg")
    save(SPOT, tmp_path / "masks" / "a.png")
    with pytest.raises(DataCorrupt, match="images holds both a"):
        paired(tmp_path / "images", tmp_path / "masks")


def write_camvid(folder):
    for split, count in (("train", 3), ("test", 2)):
        lines = []
        for number in range(count):
            name = f"{split}{number}.png"
            save(np.zeros((4, 6, 3), np.uint8), folder / split / name)
            save(np.full((4, 6), number, np.uint8), folder / f"{split}annot" / name)
            lines.append(f"/SegNet/CamVid/{split}/{name} /SegNet/CamVid/{split}annot/{name}\n")
        (folder / f"{split}.txt").write_text("".join(reversed(lines)) + "\n")
    return folder


def test_lists_of_camvid_name_paths_of_another_machine(tmp_path):
    folder = write_camvid(tmp_path / "CamVid")
    pairs = listed(folder / "train.txt")
    assert [pair.name for pair in pairs] == ["train2", "train1", "train0"]
    assert pairs[0].mask == folder / "trainannot" / "train2.png"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train/train0.png\n", "line 1: 'train/train0.png' is not a picture and its mask"),
        ("\ntrain/train0.png gone/a.png\n", "line 2: gone/a.png is not below"),
        ("train/train0.png trainannot/train0.png\n" * 2, "line 2: train0 is there a second time"),
        ("\n", "names no pictures"),
    ],
)
def test_damaged_lists_are_refused(tmp_path, text, message):
    folder = write_camvid(tmp_path / "CamVid")
    (folder / "train.txt").write_text(text)
    with pytest.raises(DataCorrupt, match=message):
        listed(folder / "train.txt")


def test_camvid_is_scored_on_its_test_list(roots):
    write_camvid(roots / "CamVid")
    found = sources.locate(dataset("camvid", pictures={"train": 3, "val": 2}))
    assert found is not None
    assert [pair.name for pair in found.pairs["val"]] == ["test1", "test0"]


def test_a_folder_in_data_dir_is_found(roots, offline):
    write_set(roots / "somewhere" / "mine")
    source = sources.require(mine())
    assert (source.kind, source.description) == ("real", "DATA_DIR: somewhere/mine")
    assert len(sources.obtain(mine()).pairs["train"]) == 5


def test_what_is_missing_is_named(roots, offline):
    message = (
        r"The files of mine are not here and cannot be fetched \(no address is known\). Put "
        "images/training, annotations/training, images/validation and annotations/validation "
        "into a folder mine/ anywhere under DATA_DIR"
    )
    with pytest.raises(DataUnavailable, match=message):
        sources.require(mine())
    (roots / "mine" / "images" / "training").mkdir(parents=True)
    message = "has no annotations/training, no images/validation, no annotations/validation"
    with pytest.raises(DataUnavailable, match=message):
        sources.require(mine())


def test_an_empty_split_is_missing(roots, offline):
    write_set(roots / "mine", val=0)
    for kind in ("images", "annotations"):
        (roots / "mine" / kind / "validation").mkdir()
    with pytest.raises(DataUnavailable, match="no picture in 'val'"):
        sources.require(mine())


def test_another_number_of_pictures_is_refused(roots, offline):
    write_set(roots / "ADEChallengeData2016", train=3, val=1)
    message = (
        "does not answer.*ADEChallengeData2016 has 3 pictures in 'train' instead of 20,210, "
        "1 pictures in 'val' instead of 2,000"
    )
    with pytest.raises(DataUnavailable, match=message):
        sources.require(dataset("ade20k"))


@pytest.mark.parametrize("folder", ["", "../mine", "a/b"])
def test_no_name_of_a_folder(folder):
    with pytest.raises(ValueError, match=r"dataset\.folder=.* is no name of a folder"):
        sources.locate(mine(folder=folder))


def test_a_split_without_a_place_is_refused():
    with pytest.raises(ValueError, match=r"dataset\.masks\.val is not given"):
        sources.locate(mine(masks={"train": "m"}))
    with pytest.raises(ValueError, match=r"dataset\.lists\.train is not given"):
        sources.locate(mine(layout="lists"))


def archive_of(folder, path):
    """Options of a data set that is fetched from a zip of a folder."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, f"deep/{folder.name}/{file.relative_to(folder)}")
        archive.writestr("deep/readme.txt", "not of the set")
    return {"url": path.as_uri(), "sha256": sha256(path)}


def test_an_archive_is_fetched_verified_and_found_again(roots, tmp_path, monkeypatch):
    options = archive_of(write_set(tmp_path / "made" / "mine"), tmp_path / "a.zip")
    found = sources.obtain(mine(**options))
    assert found.source == "CACHE_DIR: segmentation/mine"
    assert {split: len(pairs) for split, pairs in found.pairs.items()} == {"train": 5, "val": 2}
    assert sorted(path.name for path in found.folder.iterdir()) == ["annotations", "images"]
    monkeypatch.setattr(sources, "download", lambda *args: pytest.fail("fetched a second time"))
    assert sources.obtain(mine(**options)).pairs == found.pairs


def test_a_wrong_archive_leaves_nothing(roots, tmp_path):
    options = archive_of(write_set(tmp_path / "made" / "mine"), tmp_path / "a.zip")
    with pytest.raises(DataCorrupt, match=r"has SHA-256 .*, expected 00"):
        sources.obtain(mine(**{**options, "sha256": "00"}))
    (tmp_path / "a.zip").write_bytes(b"no zip")
    with pytest.raises(DataCorrupt, match="is no zip file"):
        sources.obtain(mine(**{**options, "sha256": sha256(tmp_path / "a.zip")}))
    options = archive_of(write_set(tmp_path / "made" / "others"), tmp_path / "b.zip")
    with pytest.raises(DataCorrupt, match="holds no folder mine"):
        sources.obtain(mine(**options))
    left = [path.name for path in (tmp_path / "cache" / "segmentation").iterdir()]
    assert left == [".mine.lock"]


def test_an_address_needs_a_checksum(roots):
    with pytest.raises(ValueError, match=r"dataset\.url=file:///a\.zip needs dataset\.sha256"):
        sources.obtain(mine(url="file:///a.zip"))


def test_the_published_checksum_of_ade20k_is_a_sha1(roots, tmp_path, monkeypatch):
    folder = write_set(tmp_path / "made" / "ADEChallengeData2016", classes=3)
    options = archive_of(folder, tmp_path / "a.zip")
    monkeypatch.setattr(ade20k, "URL", options["url"])
    config = dataset("ade20k", url=options["url"], pictures={})
    with pytest.raises(DataCorrupt, match=rf"has SHA-1 .*, expected {ade20k.SHA1}"):
        sources.obtain(config)
    monkeypatch.setattr(ade20k, "SHA1", checksum(tmp_path / "a.zip", "sha1"))
    assert len(sources.obtain(config).pairs["train"]) == 5


def test_no_network_is_said(roots, offline):
    with pytest.raises(DataUnavailable, match=r"ADEChallengeData2016\.zip does not answer"):
        sources.require(dataset("ade20k"))
    with pytest.raises(DataUnavailable, match="network is unreachable"):
        sources.obtain(dataset("ade20k"))


@pytest.mark.parametrize("name", ["ade20k_coarse5", "camvid_sample"])
def test_sample_data_is_found(name, data_dir):
    found = sources.locate(dataset(name))
    if found is None:
        pytest.skip(f"{name} is not in DATA_DIR")
    assert sources.require(dataset(name)).kind == "sample"
