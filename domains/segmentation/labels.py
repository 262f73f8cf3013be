"""The one place where the numbers in a mask become classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from domains.contract import DataCorrupt
from domains.segmentation.batch import IGNORED
from domains.segmentation.config import DatasetConfig
from domains.segmentation.images import Indices

Labels = npt.NDArray[np.uint8]
"""(H, W) classes from 0, `IGNORED` where there is none."""

VALUES = 256
"""Values that a mask may hold: 0 to 255."""


@dataclass(frozen=True)
class LabelRule:
    """What the numbers in a mask mean.

    Attributes:
        classes: number of classes.
        reduce_zero_label: 0 means "other" and is ignored; 1 is class 0.
        ignored: further values that are ignored, counted after that step, beside 255 in the file.
    """

    classes: int
    reduce_zero_label: bool = False
    ignored: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: DatasetConfig) -> LabelRule:
        """The rule of a data set.

        Raises:
            ValueError: the number of classes is not given.
        """
        if config.classes is None:
            raise ValueError(
                f"dataset.classes of dataset '{config.name}' is not given: set it to the number "
                "of classes in the masks, from 2 to 255"
            )
        return cls(config.classes, config.reduce_zero_label, tuple(config.ignored))

    def table(self) -> npt.NDArray[np.int16]:
        """(256,) class of every value, `IGNORED`, or -1 for values that must not occur."""
        table = np.full(VALUES, -1, np.int16)
        table[VALUES - 1] = IGNORED
        first = int(self.reduce_zero_label)
        table[:first] = IGNORED
        table[first : first + self.classes] = np.arange(self.classes)
        table[[min(value + first, VALUES - 1) for value in self.ignored]] = IGNORED
        return table

    def labels(self, indices: Indices, path: Path) -> Labels:
        """Classes of a mask.

        Args:
            indices: (H, W) integers as the file holds them.
            path: of the file, for the message.

        Returns:
            (H, W) uint8.

        Raises:
            DataCorrupt: the mask holds a value that is no class of the set.
        """
        table = self.table()
        outside = indices.min() < 0 or indices.max() >= VALUES
        if outside or (found := table[indices]).min() < 0:
            raise DataCorrupt(self._refusal(np.unique(indices), table, path))
        return found.astype(np.uint8)

    def _refusal(self, values: Indices, table: npt.NDArray[np.int16], path: Path) -> str:
        wrong = [value for value in values.tolist() if not 0 <= value < VALUES or table[value] < 0]
        first = int(self.reduce_zero_label)
        ignored = ", ".join(str(value) for value in np.flatnonzero(table == IGNORED))
        return (
            f"{path} holds {', '.join(map(str, wrong[:5]))}; allowed are the classes {first} to "
            f"{first + self.classes - 1} and, ignored, {ignored}. See dataset.classes="
            f"{self.classes}, dataset.reduce_zero_label={str(self.reduce_zero_label).lower()} "
            f"and dataset.ignored={list(self.ignored)}"
        )
