"""Predictions drawn over pictures, for the report."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from domains.contract import Example
from domains.segmentation.batch import IGNORED, EvaluationPicture
from domains.segmentation.module import SegmentationModule
from domains.segmentation.transforms import STATISTICS

EXAMPLES = 3
WIDEST = 400
"""Pixels; larger pictures are drawn smaller."""

COVER = 0.6
"""Weight of a class's colour over the picture's own."""

Picture = npt.NDArray[np.uint8]


def draw_examples(
    module: SegmentationModule, pictures: Iterable[EvaluationPicture], normalisation: str
) -> tuple[Example, ...]:
    """The first pictures with their true and predicted classes.

    Args:
        module: the trained model.
        pictures: of the test, clean ones first.
        normalisation: of the recipe.
    """
    found = []
    for picture in islice(pictures, EXAMPLES):
        predicted = module.predict(picture, stride=module.stride, mirrored=module.mirrored)
        image = denormalised(picture.images[0][0], normalisation)
        size = _size_drawn(predicted.shape[0], predicted.shape[1])
        base = F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
        given = {
            "input": _picture(base),
            "truth": _covered(base, picture.masks[0]),
        }
        found.append(Example(picture.name, given, _covered(base, predicted)))
    return tuple(found)


def denormalised(image: Tensor, normalisation: str) -> Tensor:
    """(3, H, W) on 0 to 255 from what the model sees."""
    mean, sd = (torch.tensor(values).view(3, 1, 1) for values in STATISTICS[normalisation])
    return (image * sd + mean).clamp(0.0, 255.0)


def palette(classes: int) -> Tensor:
    """(classes, 3) colours on 0 to 255 that neighbouring numbers differ much in.

    The bits of a class's number are dealt in turn to red, green and blue, the lowest to the
    highest: the colours of PASCAL VOC (Everingham et al. 2010), from 1 on, as 0 is black there.
    """
    numbers = torch.arange(1, classes + 1)
    colours = torch.zeros(classes, 3, dtype=torch.int64)
    for place in range(8):
        for channel in range(3):
            bit = numbers >> (3 * place + channel) & 1
            colours[:, channel] |= bit << (7 - place)
    return colours.float()


def _size_drawn(height: int, width: int) -> tuple[int, int]:
    factor = min(1.0, WIDEST / width)
    return max(1, round(height * factor)), max(1, round(width * factor))


def _covered(base: Tensor, classes: Tensor) -> Picture:
    """The picture under the colours of the classes (H0, W0); `IGNORED` pixels stay bare."""
    small = F.interpolate(classes[None, None].float(), size=base.shape[1:], mode="nearest-exact")
    small = small[0, 0].long()
    bare = small == IGNORED
    colours = palette(IGNORED)[torch.where(bare, 0, small)].permute(2, 0, 1)
    return _picture(torch.where(bare, base, (1.0 - COVER) * base + COVER * colours))


def _picture(image: Tensor) -> Picture:
    drawn: Picture = image.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return drawn
