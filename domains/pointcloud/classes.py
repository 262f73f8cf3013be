"""The 16 classes that are scored, and how nuScenes-lidarseg's 32 categories fall into them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domains.pointcloud.batch import IGNORED

NAMES = (
    "barrier", "bicycle", "bus", "car", "construction_vehicle", "motorcycle", "pedestrian",
    "traffic_cone", "trailer", "truck", "driveable_surface", "other_flat", "sidewalk", "terrain",
    "manmade", "vegetation",
)  # fmt: skip
"""The classes, in the order of their numbers."""

CATEGORIES = 32
"""Categories of the label files: 0 to 31."""

MEMBERS: dict[str, tuple[int, ...]] = {
    "barrier": (9,),
    "bicycle": (14,),
    "bus": (15, 16),
    "car": (17,),
    "construction_vehicle": (18,),
    "motorcycle": (21,),
    "pedestrian": (2, 3, 4, 6),
    "traffic_cone": (12,),
    "trailer": (22,),
    "truck": (23,),
    "driveable_surface": (24,),
    "other_flat": (25,),
    "sidewalk": (26,),
    "terrain": (27,),
    "manmade": (28,),
    "vegetation": (30,),
}
"""Categories of each class. The others are ignored: noise (0), animals, strollers, wheelchairs,
debris, pushable objects, bicycle racks, ambulances, police cars, other static objects (29) and the
vehicle that carries the sensor (31).

Source: the nuScenes lidarseg challenge; `pointcept/datasets/nuscenes.py` of Pointcept/Pointcept at
d74c646.
"""


def _table() -> NDArray[np.int64]:
    table = np.full(CATEGORIES, IGNORED, dtype=np.int64)
    for number, name in enumerate(NAMES):
        table[list(MEMBERS[name])] = number
    return table


TABLE = _table()
"""(32,) int64, the class of each category."""


def to_classes(categories: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Classes of raw categories.

    Args:
        categories: (N,) uint8, below 32.

    Returns:
        (N,) int64, from -1 (ignored) to 15.
    """
    return TABLE[categories]
