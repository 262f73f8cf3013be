"""Pictures and masks of every kind of file: read right, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from domains.contract import DataCorrupt
from domains.segmentation.batch import IGNORED
from domains.segmentation.images import read_image, read_indices
from domains.segmentation.labels import LabelRule
from tests.domains.segmentation.files import dataset, save

RAMP = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)
COLOURS = np.stack([RAMP, RAMP[::-1], RAMP.T.reshape(4, 6)], axis=2)


def test_colour_is_read_as_it_is(tmp_path):
    assert (read_image(save(COLOURS, tmp_path / "a.png")) == COLOURS).all()


def test_grey_becomes_three_equal_channels(tmp_path):
    image = read_image(save(RAMP, tmp_path / "a.png"))
    assert (image == RAMP[..., None]).all()


def test_sixteen_bits_become_eight(tmp_path):
    deep = (RAMP.astype(np.uint16) * 257)[..., None].repeat(1, axis=2)[..., 0]
    image = read_image(save(deep, tmp_path / "a.png"))
    assert (image == RAMP[..., None]).all()
    image = read_image(save(deep, tmp_path / "a.tif"))
    assert (image == RAMP[..., None]).all()


def test_a_palette_is_looked_up_for_pictures_and_left_aside_for_masks(tmp_path):
    indices = np.array([[0, 1], [2, 1]], np.uint8)
    image = Image.fromarray(indices)
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").tolist() == [
        [[255, 0, 0], [0, 255, 0]],
        [[0, 0, 255], [0, 255, 0]],
    ]
    assert (read_indices(tmp_path / "a.png") == indices).all()


def test_cmyk_becomes_rgb(tmp_path):
    flat = np.zeros((16, 16, 3), np.uint8)
    flat[:] = (200, 60, 20)
    Image.fromarray(flat).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    image = read_image(tmp_path / "a.jpg")
    assert np.abs(image.astype(int) - flat).max() <= 6


def test_an_alpha_channel_is_dropped(tmp_path):
    alpha = np.concatenate([COLOURS, np.full((4, 6, 1), 7, np.uint8)], axis=2)
    assert (read_image(save(alpha, tmp_path / "a.png")) == COLOURS).all()


def test_a_rotation_noted_in_the_file_is_carried_out(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(COLOURS).save(tmp_path / "a.png", exif=exif)
    assert (read_image(tmp_path / "a.png") == np.rot90(COLOURS, -1)).all()


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_truncated_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    save(noise, path)
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(DataCorrupt, match=rf"a\.{suffix} cannot be read as a picture: "):
        read_image(path)


def test_other_files_and_no_file_are_refused(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>not found</html>")
    for name in ("a.jpg", "b.jpg"):
        with pytest.raises(DataCorrupt, match=f"{name} cannot be read as a picture"):
            read_image(tmp_path / name)


def test_floating_point_pictures_are_refused(tmp_path):
    path = save(RAMP.astype(np.float32), tmp_path / "a.tif")
    with pytest.raises(DataCorrupt, match="floating-point"):
        read_image(path)


def test_masks_of_eight_sixteen_and_one_bit(tmp_path):
    mask = np.array([[0, 3], [255, 1]], np.uint8)
    assert (read_indices(save(mask, tmp_path / "a.png")) == mask).all()
    deep = mask.astype(np.uint16) + 300
    assert (read_indices(save(deep, tmp_path / "b.png")) == deep).all()
    two = read_indices(save(mask > 2, tmp_path / "c.png"))
    assert two.tolist() == [[0, 1], [1, 0]]


def test_a_coloured_mask_is_refused(tmp_path):
    path = save(COLOURS, tmp_path / "a.png")
    with pytest.raises(DataCorrupt, match=r"a\.png is a picture of mode RGB; a label map has one"):
        read_indices(path)


def test_the_zero_label_is_reduced_once(tmp_path):
    rule = LabelRule.of(dataset("ade20k"))
    mask = np.array([[0, 1], [150, 255]], np.uint8)
    assert rule.labels(mask, tmp_path).tolist() == [[IGNORED, 0], [149, IGNORED]]


def test_labels_stay_without_reduction(tmp_path):
    rule = LabelRule(4)
    mask = np.array([[0, 1], [3, 255]], np.uint16)
    found = rule.labels(mask, tmp_path)
    assert found.dtype == np.uint8
    assert found.tolist() == [[0, 1], [3, IGNORED]]


def test_void_of_camvid_is_ignored(tmp_path):
    rule = LabelRule.of(dataset("camvid"))
    assert rule.labels(np.array([[10, 11]], np.uint8), tmp_path).tolist() == [[10, IGNORED]]


@pytest.mark.parametrize(
    ("mask", "values"),
    [
        (np.array([[0, 151, 200]], np.uint8), "151, 200"),
        (np.array([[1, 700]], np.uint16), "700"),
        (np.array([[-1, 5]], np.int32), "-1"),
    ],
)
def test_values_that_are_no_class_are_refused(tmp_path, mask, values):
    rule = LabelRule.of(dataset("ade20k"))
    message = f"a.png holds {values}; allowed are the classes 1 to 150 and, ignored, 0, 255"
    with pytest.raises(DataCorrupt, match=message):
        rule.labels(mask, tmp_path / "a.png")


def test_the_number_of_classes_must_be_given():
    with pytest.raises(ValueError, match=r"dataset\.classes of dataset 'folder' is not given"):
        LabelRule.of(dataset("folder"))


def test_with_255_classes_and_a_zero_label_every_value_has_a_meaning(tmp_path):
    rule = LabelRule(255, reduce_zero_label=True)
    assert rule.labels(np.array([[0, 1, 255]], np.uint8), tmp_path).tolist() == [[255, 0, 254]]
