"""What the loaders give: crops to train on, whole pictures to be scored.

`DataInfo.sizes` holds `train` and `val` (pictures), `classes`, and `crop`: the side of a training
crop and of the windows of the evaluation, smaller than the recipe's for made-up data.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

IGNORED = 255
"""Label of pixels that count neither in the loss nor in a metric."""

CLEAN = "clean"
"""Name of the corruption that leaves a picture as it is."""


@dataclass
class Batch:
    """Crops of one size.

    Attributes:
        images: (B, 3, H, W) float32, RGB, normalised.
        masks: (B, H, W) int64 classes, `IGNORED` where there is none.
        split: `train`.
    """

    images: Tensor
    masks: Tensor
    split: str


@dataclass
class EvaluationPicture:
    """One picture at its evaluation sizes, with the labels at its original size.

    Attributes:
        images: for every scale of the protocol, in order, (1, 3, H, W) float32, RGB, normalised;
            each is resized from the original. On `val` the picture at scale 1 alone.
        masks: (1, H0, W0) int64 classes, `IGNORED` where there is none.
        name: of the picture, unique in its split.
        split: `val` while training, `test` at the end.
        corruption: name of the corruption, `CLEAN` without one.
        severity: of the corruption, 1 to 5; 0 without one.
    """

    images: list[Tensor]
    masks: Tensor
    name: str
    split: str
    corruption: str = CLEAN
    severity: int = 0
