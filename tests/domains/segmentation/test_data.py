"""Loaders: what they give, in which order, and what it depends on."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from domains.common.corruption_presets import PRESETS
from domains.contract import DataCorrupt
from domains.segmentation import data
from domains.segmentation.batch import CLEAN, IGNORED
from domains.segmentation.stream import EndlessCrops
from tests.domains.segmentation.files import CONF, configuration, dataset, save, write_set

FEW = {"corrupted": "elliptical19"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """DATA_DIR with a small set."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    write_set(tmp_path / "mine")
    return tmp_path


def mine(**options):
    settings = {"name": "mine", "folder": "mine", "classes": 3, "corrupted": "none"}
    return dataset("folder", **{**settings, **options})


def batches(built, epoch=0):
    built.first_epoch = epoch
    return list(built.train_dataloader())


def equal(first, second):
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.masks, b.masks)
        for a, b in zip(first, second, strict=True)
    )


def test_an_epoch_has_exactly_its_steps_and_every_batch_is_full(root):
    found = batches(data.build(configuration(mine(), steps_per_epoch=7)))
    assert len(found) == 7
    for batch in found:
        assert batch.images.shape == (3, 3, 32, 32)
        assert batch.images.dtype == torch.float32
        assert batch.masks.shape == (3, 32, 32)
        assert batch.masks.dtype == torch.int64
        assert set(batch.masks.unique().tolist()) <= {0, 1, 2, IGNORED}
        assert batch.split == "train"


def test_every_pass_shows_every_picture_once_in_a_new_order():
    turns = [turn for batch in EndlessCrops(5, 3, 10, seed=0) for turn in batch]
    passes = [turns[start : start + 5] for start in range(0, 30, 5)]
    for number, one in enumerate(passes):
        assert {done for done, _ in one} == {number}
        assert sorted(picture for _, picture in one) == [0, 1, 2, 3, 4]
    assert len({tuple(picture for _, picture in one) for one in passes}) > 3


def test_the_stream_goes_on_from_epoch_to_epoch():
    whole = list(EndlessCrops(5, 3, 12, seed=1))
    parts = [batch for epoch in range(4) for batch in EndlessCrops(5, 3, 3, seed=1, epoch=epoch)]
    assert parts == whole
    order = EndlessCrops(5, 3, 3, seed=1)
    order.set_epoch(2)
    assert list(order) == whole[6:9]
    assert list(EndlessCrops(5, 3, 3, seed=2)) != whole[:3]


def test_a_picture_is_cropped_anew_in_every_pass(root):
    built = data.build(configuration(mine()))
    first, second = built.crops[[(0, 2)]], built.crops[[(1, 2)]]
    assert not torch.equal(first.images, second.images)
    assert equal([first], [built.crops[[(0, 2)]]])


def test_a_resumed_run_reads_what_an_uninterrupted_one_reads(root):
    config = configuration(mine())
    built = data.build(config)
    loader = built.train_dataloader()
    list(loader)
    loader.sampler.set_epoch(1)
    assert equal(list(loader), batches(data.build(config), epoch=1))


def test_crops_depend_on_the_seed_alone(root):
    config = configuration(mine())
    found = batches(data.build(config))
    torch.manual_seed(99)
    assert equal(batches(data.build(config)), found)
    assert not equal(batches(data.build(configuration(mine(), seed=1))), found)


def test_loading_leaves_the_global_stream_alone(root):
    built = data.build(configuration(mine(**FEW)))
    before = torch.get_rng_state()
    batches(built)
    list(islice(built.test_dataloader(), 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_number_of_workers_changes_nothing(root):
    one, two = (
        data.build(configuration(mine(**FEW), loader_workers=workers)) for workers in (0, 2)
    )
    assert equal(batches(one), batches(two))
    for first, second in zip(one.test_dataloader(), two.test_dataloader(), strict=True):
        assert (first.name, first.corruption) == (second.name, second.corruption)
        assert torch.equal(first.images[0], second.images[0])


def test_a_picture_is_scored_at_its_own_size(root):
    built = data.build(configuration(mine()))
    found = list(built.val_dataloader())
    assert [picture.name for picture in found] == ["validation0", "validation1"]
    assert [tuple(picture.masks.shape) for picture in found] == [(1, 40, 56), (1, 43, 52)]
    assert [tuple(picture.images[0].shape) for picture in found] == [(1, 3, 32, 45), (1, 3, 32, 39)]
    assert {(picture.split, picture.corruption, picture.severity) for picture in found} == {
        ("val", CLEAN, 0)
    }


def test_every_scale_is_resized_from_the_original(root):
    config = configuration(mine())
    config.protocol = "multiscale"
    built = data.build(config)
    sides = [image.shape[2] for image in built.test[0].images]
    assert sides == [16, 24, 32, 40, 48, 56]
    assert [image.shape[2] for image in built.val[0].images] == [32]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_test_has_clean_pictures_first_then_every_corruption(root, preset):
    built = data.build(configuration(mine(corrupted=preset)))
    looks = [(look.corruption, look.severity) for look in built.test.looks]
    expected = [(name, level) for name, levels in PRESETS[preset].items() for level in levels]
    assert looks[:2] == [(CLEAN, 0)] * 2
    assert sorted(looks[2:]) == sorted(expected * 2)


def test_corrupted_copies_are_the_same_for_all_seeds_and_differ_between_pictures(root):
    def noise(seed, **options):
        built = data.build(configuration(mine(**FEW, **options), seed=seed))
        looks = [
            place
            for place, look in enumerate(built.test.looks)
            if look.corruption == "gaussian_noise"
        ]
        clean = [built.test[number].images[0] for number in range(2)]
        return [built.test[place].images[0] - clean[n] for n, place in enumerate(looks)]

    first = noise(0)
    assert all(torch.equal(a, b) for a, b in zip(first, noise(5), strict=True))
    other = noise(0, corruption_seed=1)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(float(change.abs().mean()) > 0.05 for change in first)
    least = [min(size) for size in zip(first[0].shape, first[1].shape, strict=True)]
    a, b = (change[tuple(slice(side) for side in least)] for change in first)
    assert not torch.equal(a, b)


def test_a_mask_of_another_size_is_refused(root):
    path = root / "mine" / "annotations" / "training" / "training1.png"
    save(np.zeros((5, 7), np.uint8), path)
    built = data.build(configuration(mine()))
    message = r"training1\.png is 52x43, its mask .*training1\.png is 7x5"
    with pytest.raises(DataCorrupt, match=message):
        batches(built)


def test_a_label_beyond_the_classes_is_refused(root):
    built = data.build(configuration(mine(classes=2)))
    with pytest.raises(DataCorrupt, match="holds 2; allowed are the classes 0 to 1"):
        batches(built)


def test_facts_about_the_data(root):
    built = data.build(configuration(mine()))
    assert built.info.kind == "real"
    assert built.info.sizes == {"train": 5, "val": 2, "classes": 3, "crop": 32}
    assert built.info.source == "DATA_DIR: mine"
    again = data.build(configuration(mine())).info.fingerprint
    assert built.info.fingerprint == again
    save(np.zeros((40, 56), np.uint8), root / "mine/annotations/training/training0.png")
    assert data.build(configuration(mine())).info.fingerprint != again


def test_sizes_are_known_where_the_configuration_gives_them():
    sizes = data.known_sizes(configuration(dataset("ade20k"), crop=512))
    assert sizes == {"train": 20_210, "val": 2_000, "classes": 150, "crop": 512}
    assert data.known_sizes(configuration(mine())) is None


@pytest.mark.parametrize("name", [path.stem for path in sorted(CONF.glob("*.yaml"))])
def test_made_up_data_has_the_form_of_the_set(name):
    config = configuration(dataset(name), batch_size=8, crop=512)
    built = data.tiny(config)
    assert built.info.kind == "synthetic"
    classes = config.dataset.classes or 5
    assert built.info.sizes == {"train": 4, "val": 2, "classes": classes, "crop": 32}
    found = batches(built)
    assert [batch.images.shape for batch in found] == [(2, 3, 32, 32)] * 2
    values = set(torch.cat([batch.masks for batch in found]).unique().tolist())
    assert len(values - {IGNORED}) > 1
    assert values <= {*range(classes), IGNORED}
    conditions = {(look.corruption, look.severity) for look in built.test.looks}
    assert len(conditions) == 73
    assert len(built.test.looks) == 2 + 72


def test_made_up_pictures_are_corrupted_in_every_way():
    built = data.tiny(configuration(dataset("ade20k", corrupted="fan19")))
    found = list(built.test_dataloader())
    assert len(found) == 2 + 57
    clean = found[0]
    changed = [picture for picture in found if picture.corruption != CLEAN]
    assert all(picture.images[0].shape == clean.images[0].shape for picture in changed)
    assert not any(torch.equal(picture.images[0], clean.images[0]) for picture in changed)
    assert all(torch.equal(picture.masks, clean.masks) for picture in changed)


@pytest.mark.parametrize(
    ("name", "sizes", "values"),
    [
        ("ade20k_coarse5", {"train": 18, "val": 6, "classes": 5}, {0, 1, 2, 3, 4}),
        ("camvid_sample", {"train": 24, "val": 8, "classes": 11}, set(range(11))),
    ],
)
def test_sample_data_is_read(name, sizes, values, data_dir):
    config = configuration(dataset(name, corrupted="none"), crop=64, short_side=64, long_side=256)
    if not list(data_dir.rglob(config.dataset.folder)):
        pytest.skip(f"{name} is not in DATA_DIR")
    built = data.build(config)
    assert built.info.kind == "sample"
    assert built.info.sizes == {**sizes, "crop": 64}
    seen = set()
    for picture in built.val_dataloader():
        seen |= set(picture.masks.unique().tolist())
    assert seen - {IGNORED} == values
    found = batches(built)
    assert not equal(found[:1], [replace(found[1])])
