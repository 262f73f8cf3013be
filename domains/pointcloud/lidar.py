"""A made-up 32-beam LiDAR: rays cast into scenes of ground, walls, boxes, poles and people.

For smoke runs and tests. A scan has the form of a nuScenes frame: 32 rings between -30.67 and
+10.67 degrees (measured on real frames), the ring counting fastest, a point for every ray, and
returns of the vehicle itself; rays into the sky give a point close to the sensor, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from domains.pointcloud.frames import BRIGHTEST, COLUMNS, FrameFiles

Floats = NDArray[np.float32]

RINGS = 32
LOWEST, HIGHEST = -30.67, 10.67
"""Elevations of the first and the last ring, degrees."""

GROUND = -1.84
"""Height of the ground below the sensor, m."""

FARTHEST = 105.0
"""Longest range with a return, m."""

RANGE_NOISE = 0.02
"""Standard deviation of a range, m."""

PEDESTRIAN, CONE, BARRIER, BICYCLE, BUS, CAR = 2, 12, 9, 14, 16, 17
CONSTRUCTION, MOTORCYCLE, TRAILER, TRUCK = 18, 21, 22, 23
ROAD, OTHER_FLAT, SIDEWALK, TERRAIN, MANMADE, VEGETATION, EGO = 24, 25, 26, 27, 28, 30, 31

BOXES = {
    CAR: ((4.5, 1.9, 1.6), 5.0, 30.0),
    TRUCK: ((7.0, 2.5, 3.0), 6.0, 11.0),
    BUS: ((11.0, 2.9, 3.4), 6.0, 45.0),
    TRAILER: ((9.0, 2.5, 3.6), 8.0, 28.0),
    CONSTRUCTION: ((5.0, 2.6, 3.0), 7.0, 35.0),
    MOTORCYCLE: ((2.1, 0.8, 1.4), 4.0, 14.0),
    BICYCLE: ((1.7, 0.6, 1.2), 4.0, 20.0),
    BARRIER: ((2.0, 0.5, 1.0), 4.0, 50.0),
}
"""By category: length, width and height (m), least distance (m) and mean intensity."""

CYLINDERS = {
    PEDESTRIAN: (0.35, 1.75, 3.0, 26.0),
    CONE: (0.2, 0.8, 3.0, 70.0),
    MANMADE: (0.15, 6.0, 4.0, 40.0),
    VEGETATION: (1.2, 5.0, 6.0, 18.0),
}
"""By category: radius and height (m), least distance (m) and mean intensity."""

BRIGHTNESS = {
    **{category: form[-1] for category, form in BOXES.items()},
    **{category: form[-1] for category, form in CYLINDERS.items()},
    ROAD: 8.0,
    OTHER_FLAT: 22.0,
    SIDEWALK: 17.0,
    TERRAIN: 28.0,
    EGO: 12.0,
}


@dataclass(frozen=True)
class Scene:
    """What the rays meet, in the sensor's frame (m).

    The ground is a road along x with a pavement on either side and terrain beyond; `island` is a
    disc of other flat ground.

    Attributes:
        centre: (B, 3) float32, of the boxes.
        half: (B, 3) float32, half their length, width and height.
        yaw: (B,) float32, their angle about z, rad.
        box: (B,) uint8, their categories.
        axis: (C, 2) float32, places of upright cylinders.
        radius: (C,) float32.
        top: (C,) float32, their upper ends; the lower ones stand on the ground.
        cylinder: (C,) uint8, their categories.
        road: half the width of the road.
        pavement: distance of the pavement's far edge from the middle of the road.
        island: x, y and radius.
    """

    centre: Floats
    half: Floats
    yaw: Floats
    box: NDArray[np.uint8]
    axis: Floats
    radius: Floats
    top: Floats
    cylinder: NDArray[np.uint8]
    road: float
    pavement: float
    island: tuple[float, float, float]


def random_scene(rng: np.random.Generator) -> Scene:
    """A street with about 40 objects; all categories of `BRIGHTNESS` are in it."""
    categories = np.array([*BOXES, *rng.choice(list(BOXES), 8, p=_frequencies())], dtype=np.uint8)
    size = np.array([BOXES[int(c)][0] for c in categories])
    size *= rng.uniform(0.9, 1.1, size=size.shape)
    nearest = np.array([BOXES[int(c)][1] for c in categories])
    place = _places(rng, nearest)
    walls = _walls(rng)
    # The vehicle under the sensor: short enough that the steep beams alone meet it.
    ego = np.array([[0.0, 0.0, GROUND + 0.75, 0.8, 0.7, 0.75, 0.0]])
    boxes = np.concatenate(
        [
            np.column_stack([place, GROUND + size[:, 2] / 2, size / 2, _yaws(rng, len(place))]),
            walls,
            ego,
        ]
    ).astype(np.float32)
    upright = np.array([*CYLINDERS, *rng.choice(list(CYLINDERS), 12)], dtype=np.uint8)
    form = np.array([CYLINDERS[int(c)][:3] for c in upright])
    form[:, :2] *= rng.uniform(0.8, 1.2, size=(len(form), 2))
    return Scene(
        centre=boxes[:, :3],
        half=boxes[:, 3:6],
        yaw=boxes[:, 6],
        box=np.concatenate([categories, np.full(len(walls), MANMADE), [EGO]]).astype(np.uint8),
        axis=_places(rng, form[:, 2]).astype(np.float32),
        radius=form[:, 0].astype(np.float32),
        top=(GROUND + form[:, 1]).astype(np.float32),
        cylinder=upright,
        road=float(rng.uniform(5.0, 8.0)),
        pavement=float(rng.uniform(10.0, 13.0)),
        island=(float(rng.uniform(6.0, 12.0)), float(rng.uniform(-4.0, 4.0)), 2.0),
    )


def _frequencies() -> Floats:
    """Cars are most of the traffic."""
    weight = np.array([5.0 if category == CAR else 1.0 for category in BOXES])
    return weight / weight.sum()


def _places(rng: np.random.Generator, nearest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places around the sensor, (n, 2), each at its least distance or up to 20 m beyond it."""
    distance = nearest + rng.uniform(0.0, 20.0, size=len(nearest))
    angle = rng.uniform(-np.pi, np.pi, size=len(nearest))
    return np.column_stack([distance * np.cos(angle), distance * np.sin(angle)])


def _yaws(rng: np.random.Generator, number: int) -> NDArray[np.float64]:
    """Along the road, give or take."""
    return rng.normal(0.0, 0.2, size=number)


def _walls(rng: np.random.Generator) -> NDArray[np.float64]:
    """Fronts of houses on either side: centre, half sizes and yaw, (4, 7)."""
    side = np.array([1.0, 1.0, -1.0, -1.0])
    x = np.array([-20.0, 20.0, -20.0, 20.0]) + rng.uniform(-6.0, 6.0, size=4)
    y = side * rng.uniform(16.0, 26.0, size=4)
    height = rng.uniform(4.0, 12.0, size=4)
    length = rng.uniform(6.0, 12.0, size=4)
    turned = rng.normal(0.0, 0.05, size=4)
    return np.column_stack([x, y, GROUND + height / 2, length, np.full(4, 0.3), height / 2, turned])


def rays(azimuths: int) -> Floats:
    """Unit directions, (32 * azimuths, 3) float32; the ring counts fastest."""
    elevation = np.radians(np.linspace(LOWEST, HIGHEST, RINGS))
    azimuth = np.linspace(np.pi, -np.pi, azimuths, endpoint=False)[:, None]
    flat = np.cos(elevation)
    direction = np.stack(
        np.broadcast_arrays(flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)),
        axis=-1,
    )
    return direction.reshape(-1, 3).astype(np.float32)


def cast(scene: Scene, direction: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """The nearest thing that each ray from the sensor meets.

    Args:
        scene: see :class:`Scene`.
        direction: (R, 3) float32, of length 1.

    Returns:
        Ranges (R,) in m, infinite for rays into the sky, and categories (R,), 0 there.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ground = np.where(direction[:, 2] < 0.0, GROUND / direction[:, 2], np.inf)
        ground_category = _ground(scene, ground[:, None] * direction[:, :2])
        options = [ground[:, None], _to_boxes(scene, direction), _to_cylinders(scene, direction)]
    ranges = np.concatenate(options, axis=1)
    categories = np.concatenate([[0], scene.box, scene.cylinder]).astype(np.uint8)
    nearest = np.argmin(ranges, axis=1)
    distance = np.take_along_axis(ranges, nearest[:, None], axis=1)[:, 0]
    hit = np.where(nearest == 0, ground_category, categories[nearest])
    sky = distance > FARTHEST
    return np.where(sky, np.inf, distance), np.where(sky, 0, hit).astype(np.uint8)


def _ground(scene: Scene, place: Floats) -> NDArray[np.uint8]:
    """Category of the ground at (R, 2) places."""
    aside = np.abs(place[:, 1])
    category = np.select([aside < scene.road, aside < scene.pavement], [ROAD, SIDEWALK], TERRAIN)
    x, y, radius = scene.island
    island = np.hypot(place[:, 0] - x, place[:, 1] - y) < radius
    return np.where(island, OTHER_FLAT, category).astype(np.uint8)


def _to_boxes(scene: Scene, direction: Floats) -> Floats:
    """Ranges to the boxes, (R, B), infinite where a ray misses: slabs in each box's own frame."""
    cos, sin = np.cos(scene.yaw), np.sin(scene.yaw)
    centre, half = scene.centre, scene.half
    entry, exit_ = np.float32(0.0), np.float32(np.inf)
    x, y, z = (direction[:, axis, None] for axis in range(3))
    across = (
        (x * cos + y * sin, centre[:, 0] * cos + centre[:, 1] * sin, half[:, 0]),
        (y * cos - x * sin, centre[:, 1] * cos - centre[:, 0] * sin, half[:, 1]),
        (np.broadcast_to(z, (len(z), len(cos))), centre[:, 2], half[:, 2]),
    )
    for along, middle, reach in across:
        # A ray along a slab divides by zero: infinities of the right signs, as it should be.
        first, second = (middle - reach) / along, (middle + reach) / along
        entry = np.maximum(entry, np.minimum(first, second))
        exit_ = np.minimum(exit_, np.maximum(first, second))
    return np.where((entry > 0.0) & (entry <= exit_), entry, np.inf)


def _to_cylinders(scene: Scene, direction: Floats) -> Floats:
    """Ranges to the sides of the cylinders, (R, C), infinite where a ray misses."""
    flat = direction[:, :2]
    towards = flat @ scene.axis.T
    square = (flat**2).sum(axis=1)[:, None]
    beyond = (scene.axis**2).sum(axis=1) - scene.radius**2
    root = towards**2 - square * beyond
    distance = (towards - np.sqrt(np.maximum(root, 0.0))) / square
    height = distance * direction[:, 2, None]
    met = (root >= 0.0) & (distance > 0.0) & (height > GROUND) & (height < scene.top)
    return np.where(met, distance, np.inf)


def scan(scene: Scene, azimuths: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.uint8]]:
    """One turn of the sensor.

    Args:
        scene: what is there.
        azimuths: firings a turn; nuScenes has about 1085.
        rng: noise of ranges and intensities, and how close the points of lost rays are.

    Returns:
        Points (32 * azimuths, 5) float32 and categories (32 * azimuths,) uint8.
    """
    direction = rays(azimuths)
    distance, category = cast(scene, direction)
    lost = np.isinf(distance)
    distance = distance + rng.normal(0.0, RANGE_NOISE, size=len(distance))
    distance = np.where(lost, rng.uniform(0.02, 0.6, size=len(distance)), distance)
    category = np.where(lost, EGO, category).astype(np.uint8)
    table = np.zeros(EGO + 1)
    table[list(BRIGHTNESS)] = list(BRIGHTNESS.values())
    intensity = np.rint(table[category] * rng.lognormal(0.0, 0.4, size=len(distance)))
    points = np.empty((len(distance), COLUMNS), dtype=np.float32)
    points[:, :3] = distance[:, None] * direction
    points[:, 3] = np.minimum(intensity, BRIGHTEST)
    points[:, 4] = np.tile(np.arange(RINGS), azimuths)
    return points, category


def write_frame(
    folder: Path, name: str, points: Floats, categories: NDArray[np.uint8]
) -> FrameFiles:
    """Write a scan as nuScenes stores a frame.

    Args:
        folder: of the set; `samples/LIDAR_TOP` and `lidarseg/made` are made in it.
        name: of the frame, without an ending.
        points: (N, 5) float32.
        categories: (N,) uint8.
    """
    files = FrameFiles(
        folder / "samples" / "LIDAR_TOP" / f"{name}.pcd.bin",
        folder / "lidarseg" / "made" / f"{name}_lidarseg.bin",
    )
    for path in (files.points, files.labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.points.write_bytes(points.astype("<f4").tobytes())
    files.labels.write_bytes(categories.tobytes())
    return files
