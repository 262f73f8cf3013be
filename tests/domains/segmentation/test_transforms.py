"""What training and evaluation do to a picture: sizes, pixels, labels, draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from domains.segmentation import colour, transforms
from domains.segmentation.batch import IGNORED
from domains.segmentation.colour import Photometric
from domains.segmentation.config import SegmentationRecipe
from domains.segmentation.transforms import Draws

RECIPE = SegmentationRecipe(name="ade20k", max_epochs=1, batch_size=8)
PLAIN = Draws(factor=1.0, corners=((0.0, 0.0),), mirrored=False, photometric=None)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(height: int, width: int) -> np.ndarray:
    return rng().integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("size", "frame", "expected"),
    [
        ((512, 683), (2048, 512), (512, 683)),
        ((683, 512), (2048, 512), (683, 512)),  # the frame is turned
        ((364, 500), (2048, 512), (512, 703)),
        ((300, 1500), (2048, 512), (410, 2048)),  # wider than 4:1: the long side decides
        ((512, 683), (1024, 256), (256, 342)),
        ((1, 1000), (2048, 512), (2, 2048)),
    ],
)
def test_a_picture_is_fitted_into_the_frame(size, frame, expected):
    assert transforms.fitted(size, frame) == expected


@pytest.mark.parametrize("size", [(30, 41), (20, 27), (61, 90), (7, 5), (1, 1)])
def test_pictures_are_resized_bilinearly(size):
    image = noise(30, 41)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = F.interpolate(planes, size=size, mode="bilinear", align_corners=False)
    expected = expected[0].permute(1, 2, 0).numpy()
    found = transforms.resized_image(image, size)
    assert found.dtype == np.uint8
    assert np.abs(found - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("size", [(30, 41), (61, 90), (20, 27)])
def test_a_part_of_the_result_is_computed_alone(size):
    image = noise(30, 41)
    whole = transforms.resized_image(image, size)
    box = (5, 3, size[0] - 9, size[1] - 3)
    part = transforms.resized_image(image, size, box)
    assert (part == whole[5 : size[0] - 4, 3:]).all()


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (3, 4), (5, 7)])
def test_labels_are_taken_from_the_nearest_pixel(size):
    labels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    planes = torch.from_numpy(labels)[None, None].double()
    expected = F.interpolate(planes, size=size, mode="nearest")[0, 0].numpy()
    assert (transforms.resized_labels(labels, size) == expected).all()


def two_fields(side: int = 20) -> np.ndarray:
    labels = np.zeros((side, side), np.uint8)
    labels[:, side // 2 :] = 1
    return labels


def corners(*places):
    return replace(PLAIN, corners=places)


def test_a_crop_is_drawn_again_while_one_class_fills_it():
    draws = corners((0.0, 0.0), (0.0, 0.1), (0.0, 0.5), (0.0, 0.9))
    # Left edges 0, 1, 5, 9 of a crop of 10: the border of the classes is at 10.
    assert transforms.crop_box(two_fields(), 10, draws, 0.75) == (0, 5, 10, 10)
    assert transforms.crop_box(two_fields(), 10, draws, 0.95) == (0, 1, 10, 10)
    assert transforms.crop_box(two_fields(), 10, draws, 1.0) == (0, 0, 10, 10)


def test_the_last_crop_is_taken_whatever_is_in_it():
    draws = corners((0.0, 0.0), (0.0, 0.0), (0.9, 0.0))
    assert transforms.crop_box(np.zeros((20, 20), np.uint8), 10, draws, 0.75) == (9, 0, 10, 10)


def test_ignored_pixels_do_not_count_as_a_class():
    labels = two_fields()
    labels[:, :10] = IGNORED
    labels[:, 10] = 2
    draws = corners((0.0, 0.5), (0.0, 0.999))
    # From 5 on: 10 pixels of class 2, 40 of class 1; more than three quarters of what is labelled.
    assert transforms.crop_box(labels, 10, draws, 0.75) == (0, 10, 10, 10)
    assert transforms.crop_box(labels, 10, draws, 0.85) == (0, 5, 10, 10)


def test_corners_reach_every_place():
    draws = [corners((share, share)) for share in np.linspace(0.0, 1.0, 500, endpoint=False)]
    tops = {transforms.crop_box(two_fields(13), 10, draw, 1.0)[0] for draw in draws}
    assert tops == {0, 1, 2, 3}


def test_a_small_picture_is_padded_at_the_right_and_below():
    recipe = replace(RECIPE, long_side=80, short_side=20)
    image, labels = noise(20, 30), two_fields()[:, :15].repeat(2, axis=1)
    pixels, mask = transforms.training_crop(image, labels, recipe, 40, PLAIN)
    assert pixels.shape == (3, 40, 40)
    assert (pixels[:, 20:] == 0).all()
    assert (pixels[:, :, 30:] == 0).all()
    assert (pixels[:, :20, :30] == transforms.normalised(image, "imagenet")).all()
    assert (mask[:20, :30] == labels).all()
    assert (mask[20:] == IGNORED).all()
    assert (mask[:, 30:] == IGNORED).all()


def test_picture_and_labels_stay_together():
    """Each class has its grey: after any crop, scale and mirror the two still agree."""
    labels = rng().integers(0, 2, (6, 8), dtype=np.uint8).repeat(20, axis=0).repeat(20, axis=1)
    image = np.where(labels, 200, 20).astype(np.uint8)[..., None].repeat(3, axis=2)
    recipe = replace(RECIPE, long_side=400, short_side=100, photometric=False)
    for seed in range(6):
        draws = Draws.of(rng(seed), recipe)
        pixels, mask = transforms.training_crop(image, labels, recipe, 64, draws)
        dark = transforms.normalised(np.full((1, 1, 3), 110, np.uint8), "imagenet")
        seen = (pixels > dark).all(axis=0)
        real = mask != IGNORED
        # Only at the borders of the fields bilinear and nearest differ.
        assert (seen[real] == mask[real]).mean() > 0.93, seed


def test_a_mirror_exchanges_left_and_right():
    recipe = replace(RECIPE, long_side=120, short_side=30)
    image, labels = noise(30, 40), rng().integers(0, 9, (30, 40), dtype=np.uint8)
    plain = transforms.training_crop(image, labels, recipe, 40, PLAIN)
    mirrored = transforms.training_crop(image, labels, recipe, 40, replace(PLAIN, mirrored=True))
    assert (mirrored[0] == plain[0][:, :, ::-1]).all()
    assert (mirrored[1] == plain[1][:, ::-1]).all()


def test_statistics_are_those_of_the_protocol():
    image = np.array([[[123, 116, 103]]], np.uint8)
    found = transforms.normalised(image, "imagenet")[:, 0, 0]
    expected = [(123 - 123.68) / 58.4, (116 - 116.28) / 57.12, (103 - 103.53) / 57.38]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (
        transforms.normalised(np.full((1, 1, 3), 255, np.uint8), "half").ravel().tolist()
        == [1.0] * 3
    )


def test_an_evaluation_picture_is_fitted_and_not_cropped():
    pixels = transforms.evaluation_picture(noise(64, 96), replace(RECIPE, short_side=32))
    assert pixels.shape == (3, 32, 48)


def test_draws_have_the_ranges_of_the_protocol():
    many = [Draws.of(rng(seed), RECIPE) for seed in range(2000)]
    factors = np.array([draws.factor for draws in many])
    assert 0.5 <= factors.min() < 0.51
    assert 1.99 < factors.max() <= 2.0
    assert factors.mean() == pytest.approx(1.25, abs=0.03)
    assert np.mean([draws.mirrored for draws in many]) == pytest.approx(0.5, abs=0.04)
    assert {len(draws.corners) for draws in many} == {11}
    steps = [draws.photometric for draws in many]
    for name, low, high in (
        ("brightness", -32, 32),
        ("contrast", 0.5, 1.5),
        ("saturation", 0.5, 1.5),
        ("hue", -18, 17),
    ):
        drawn = [getattr(step, name) for step in steps]
        strength = np.array([value for value in drawn if value is not None], float)
        assert len(strength) / len(drawn) == pytest.approx(0.5, abs=0.04)
        span = high - low
        assert low <= strength.min() < low + 0.03 * span
        assert high - 0.03 * span < strength.max() <= high
    assert np.mean([step.contrast_last for step in steps]) == pytest.approx(0.5, abs=0.04)


def test_without_distortion_the_other_draws_stay_the_same():
    plain = Draws.of(rng(), replace(RECIPE, photometric=False))
    assert plain == replace(Draws.of(rng(), RECIPE), photometric=None)


def test_hue_saturation_and_value_of_known_colours():
    image = np.array(
        [[[255, 0, 0], [0, 255, 0], [0, 0, 255], [128, 128, 128], [0, 0, 0], [255, 255, 0]]],
        np.uint8,
    )
    hue, saturation, value = colour.hsv_of(image)
    assert hue.tolist() == [[0, 60, 120, 0, 0, 30]]
    assert saturation.tolist() == [[255, 255, 255, 0, 0, 255]]
    assert value.tolist() == [[255, 255, 255, 128, 0, 255]]
    assert (colour.rgb_of(hue, saturation, value) == image).all()


def test_colours_survive_the_way_there_and_back():
    image = noise(60, 60)
    back = colour.rgb_of(*colour.hsv_of(image))
    # Hue has steps of two degrees, saturation of one part in 255.
    assert np.abs(back.astype(int) - image).max() <= 6
    assert (back.max(axis=2) == image.max(axis=2)).all()


def test_distortion_step_by_step():
    image = np.array([[[200, 100, 150], [10, 20, 250]]], np.uint8)

    def distorted(**steps):
        return colour.distort(image, Photometric(**steps)).tolist()[0]

    assert distorted() == image.tolist()[0]
    assert distorted(brightness=10.7) == [[210, 110, 160], [20, 30, 255]]
    assert distorted(contrast=0.5) == [[100, 50, 75], [5, 10, 125]]
    assert distorted(contrast=1.5, contrast_last=True) == [[255, 150, 225], [15, 30, 255]]
    # Half the saturation: halfway to the value.
    assert distorted(saturation=0.5)[0] == pytest.approx([200, 150, 175], abs=1)
    # 60 steps of two degrees: red becomes green, green blue, blue red.
    turned = colour.distort(image, Photometric(hue=60))
    np.testing.assert_allclose(turned[..., [1, 2, 0]], image, atol=4)


def test_contrast_comes_before_or_after_the_colours():
    image = noise(8, 8)
    early, late = (
        colour.distort(image, Photometric(contrast=1.5, contrast_last=last, saturation=1.5))
        for last in (False, True)
    )
    assert (early != late).any()
