"""What is done to a picture before the model sees it.

The steps of training are those of rstrudel/segmenter at 20d1bfa (`segm/data/config/ade20k.py`),
which are mmsegmentation's: random resize, random crop, mirror, photometric distortion,
normalisation, padding. Random numbers are drawn apart from the steps (:class:`Draws`), so that the
steps alone can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from domains.segmentation.batch import IGNORED
from domains.segmentation.colour import Photometric, distort
from domains.segmentation.config import SegmentationRecipe
from domains.segmentation.images import Pixels
from domains.segmentation.labels import Labels

Size = tuple[int, int]
"""Height and width in pixels."""

Box = tuple[int, int, int, int]
"""Top, left, height, width."""

Floats = npt.NDArray[np.float32]

STATISTICS = {
    "imagenet": ((123.68, 116.28, 103.53), (58.4, 57.12, 57.38)),
    "half": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
}
"""Mean and standard deviation of R, G and B by `recipe.normalisation`, on 0 to 255."""


def fitted(size: Size, frame: tuple[int, int]) -> Size:
    """The largest size of the same aspect ratio that fits a frame, whichever way it is turned.

    Args:
        size: height and width.
        frame: two sides in pixels.
    """
    factor = min(max(frame) / max(size), min(frame) / min(size))
    height, width = (int(side * factor + 0.5) for side in size)
    return max(height, 1), max(width, 1)


def resized_image(image: Pixels, size: Size, box: Box | None = None) -> Pixels:
    """A picture resized bilinearly, without smoothing where it shrinks, as OpenCV does by default.

    Only the pixels of `box` are computed.

    Args:
        image: (H, W, 3) uint8.
        size: height and width of the whole result.
        box: part of the result that is wanted, all of it without one.

    Returns:
        (h, w, 3) uint8 of the box's size.
    """
    top, left, height, width = box or (0, 0, *size)
    if size == image.shape[:2]:
        return image[top : top + height, left : left + width]
    low_y, high_y, share_y = _taps(image.shape[0], size[0], top, height)
    low_x, high_x, share_x = _taps(image.shape[1], size[1], left, width)
    # Only the columns that are needed, so that the first blend does not touch the others.
    first = int(low_x[0])
    columns = image[:, first : int(high_x[-1]) + 1]
    rows = _blend(columns[low_y], columns[high_y], share_y[:, None, None])
    mixed = _blend(rows[:, low_x - first], rows[:, high_x - first], share_x[None, :, None])
    return (mixed + np.float32(0.5)).astype(np.uint8)


def _blend(low: npt.NDArray[np.generic], high: npt.NDArray[np.generic], share: Floats) -> Floats:
    mixed = high.astype(np.float32)
    start = low.astype(np.float32)
    mixed -= start
    mixed *= share
    mixed += start
    return mixed


def _taps(
    old: int, new: int, first: int, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """For `count` new pixels from `first`: the two old ones beside each, and the second's share."""
    position = (np.arange(first, first + count) + 0.5) * (old / new) - 0.5
    position = np.clip(position, 0.0, old - 1.0)
    low = np.floor(position).astype(np.int64)
    return low, np.minimum(low + 1, old - 1), (position - low).astype(np.float32)


def resized_labels(labels: Labels, size: Size) -> Labels:
    """Labels of the nearest pixel up and left, as OpenCV takes it."""
    if size == labels.shape:
        return labels
    rows, columns = (
        np.minimum((np.arange(new) * (old / new)).astype(np.int64), old - 1)
        for old, new in zip(labels.shape, size, strict=True)
    )
    nearest: Labels = labels[rows[:, None], columns]
    return nearest


@dataclass(frozen=True)
class Draws:
    """The random numbers of one training crop.

    Attributes:
        factor: of the frame that the picture is fitted into.
        corners: top-left corners as shares of the room there is, in the order they are tried.
        mirrored: whether left and right are exchanged.
        photometric: see :class:`domains.segmentation.colour.Photometric`; None distorts nothing.
    """

    factor: float
    corners: tuple[tuple[float, float], ...]
    mirrored: bool
    photometric: Photometric | None

    @classmethod
    def of(cls, generator: np.random.Generator, recipe: SegmentationRecipe) -> Draws:
        """Draw for a crop; how many numbers are drawn does not depend on the picture."""
        factor = generator.uniform(recipe.scale_low, recipe.scale_high)
        corners = generator.random((recipe.crop_redraws + 1, 2))
        return cls(
            factor=float(factor),
            corners=tuple((float(down), float(right)) for down, right in corners),
            mirrored=bool(generator.random() < recipe.flip),
            photometric=Photometric.of(generator) if recipe.photometric else None,
        )


def crop_box(labels: Labels, crop: int, draws: Draws, share: float) -> Box:
    """The first of the drawn boxes in which no class takes too much of the labelled pixels.

    A box also needs two classes. The last box is taken whatever is in it. `share=1` takes the
    first.

    Args:
        labels: (H, W) at the size that is cropped.
        crop: largest side.
        draws: only the corners are read.
        share: of the labelled pixels that a class must stay below.
    """
    height, width = (min(side, crop) for side in labels.shape)
    room = labels.shape[0] - height, labels.shape[1] - width
    boxes = [
        (int(down * (room[0] + 1)), int(right * (room[1] + 1)), height, width)
        for down, right in draws.corners
    ]
    if share >= 1.0:
        return boxes[0]
    for top, left, *_ in boxes[:-1]:
        part = labels[top : top + height, left : left + width]
        counts = np.bincount(part.ravel(), minlength=IGNORED + 1)[:IGNORED]
        if np.count_nonzero(counts) > 1 and counts.max() < share * counts.sum():
            return top, left, height, width
    return boxes[-1]


def training_crop(
    image: Pixels, labels: Labels, recipe: SegmentationRecipe, crop: int, draws: Draws
) -> tuple[Floats, Labels]:
    """A picture as training sees it.

    Args:
        image: (H, W, 3) uint8, RGB.
        labels: (H, W).
        recipe: the settings of the steps.
        crop: side of the result.
        draws: random numbers.

    Returns:
        (3, crop, crop) float32 normalised, 0 where the picture is too small; (crop, crop) labels,
        `IGNORED` there.
    """
    frame = int(recipe.long_side * draws.factor), int(recipe.short_side * draws.factor)
    size = fitted(labels.shape, frame)
    labels = resized_labels(labels, size)
    box = crop_box(labels, crop, draws, recipe.max_class_share)
    top, left, height, width = box
    labels = labels[top : top + height, left : left + width]
    image = resized_image(image, size, box)
    if draws.mirrored:
        image, labels = image[:, ::-1], labels[:, ::-1]
    if draws.photometric is not None:
        image = distort(image, draws.photometric)
    pixels = np.zeros((3, crop, crop), np.float32)
    pixels[:, :height, :width] = normalised(image, recipe.normalisation)
    mask = np.full((crop, crop), IGNORED, np.uint8)
    mask[:height, :width] = labels
    return pixels, mask


def normalised(image: Pixels, statistics: str) -> Floats:
    """(3, H, W) float32: a picture less its mean, over its standard deviation.

    Args:
        image: (H, W, 3) uint8, RGB.
        statistics: key of :data:`STATISTICS`.
    """
    mean, deviation = (np.array(values, np.float32) for values in STATISTICS[statistics])
    pixels = image.transpose(2, 0, 1).astype(np.float32)
    pixels -= mean[:, None, None]
    pixels /= deviation[:, None, None]
    return pixels


def evaluation_picture(image: Pixels, recipe: SegmentationRecipe, scale: float = 1.0) -> Floats:
    """(3, h, w) float32: a picture fitted into the frame times a factor, normalised."""
    frame = (int(recipe.long_side * scale), int(recipe.short_side * scale))
    size = fitted(image.shape[:2], frame)
    return normalised(resized_image(image, size), recipe.normalisation)
