"""Made-up pictures with true shapes and types, for smoke runs and tests: no file is needed."""

from __future__ import annotations

import numpy as np

from domains.common.seeds import derive
from domains.segmentation.batch import IGNORED
from domains.segmentation.images import Pixels
from domains.segmentation.labels import Labels

SHOWN = 5
"""Classes that made-up pictures show at most, of however many there are."""


class MadePictures:
    """Pictures of two fields and a disk, each in the colour of its class, with grain.

    A frame of pixels at the border is ignored.

    Args:
        split: of which they are made.
        count: of pictures.
        classes: there are; the first :data:`SHOWN` occur.
        side: shorter side in pixels; the longer is half as long again.
    """

    def __init__(self, split: str, count: int, classes: int, side: int) -> None:
        self.split = split
        self.classes = min(classes, SHOWN)
        self.side = side
        self.names = [f"{split}{number}" for number in range(count)]

    def read(self, number: int) -> tuple[Pixels, Labels]:
        """(H, W, 3) uint8 RGB and (H, W) labels."""
        generator = np.random.default_rng(derive(0, "picture", self.split, number))
        size = self.side, self.side * 3 // 2
        if number % 2:
            size = size[::-1]
        rows, columns = np.ogrid[: size[0], : size[1]]
        first, second, third = generator.permuted(np.arange(max(self.classes, 3)))[:3]
        labels = np.where(rows < generator.uniform(0.3, 0.7) * size[0], first, second)
        centre = generator.uniform(0.3, 0.7, 2) * size
        disk = np.hypot(rows - centre[0], columns - centre[1]) < 0.25 * self.side
        labels = np.where(disk, third, labels) % self.classes
        colours = np.random.default_rng(derive(0, "colours")).integers(40, 216, (SHOWN, 3))
        grain = generator.normal(0.0, 12.0, (*size, 3))
        image = np.clip(colours[labels] + grain, 0, 255).astype(np.uint8)
        labels[[0, -1]], labels[:, [0, -1]] = IGNORED, IGNORED
        return image, labels.astype(np.uint8)
