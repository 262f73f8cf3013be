"""The made-up sensor: geometry by hand and against a slow march, and the format of its frames."""

from __future__ import annotations

import numpy as np
import pytest

from domains.pointcloud import lidar
from domains.pointcloud.classes import IGNORED, TABLE
from domains.pointcloud.lidar import CAR, EGO, GROUND, MANMADE, PEDESTRIAN, ROAD, Scene


def scene(boxes=(), cylinders=()) -> Scene:
    """Boxes as (x, y, z, half sizes, yaw, category), cylinders as (x, y, radius, top, category)."""
    box = np.array(boxes, dtype=np.float32).reshape(-1, 8)
    upright = np.array(cylinders, dtype=np.float32).reshape(-1, 5)
    return Scene(
        centre=box[:, :3], half=box[:, 3:6], yaw=box[:, 6], box=box[:, 7].astype(np.uint8),
        axis=upright[:, :2], radius=upright[:, 2], top=upright[:, 3],
        cylinder=upright[:, 4].astype(np.uint8),
        road=6.0, pavement=10.0, island=(0.0, 50.0, 2.0),
    )  # fmt: skip


def towards(*directions: tuple[float, float, float]) -> np.ndarray:
    vectors = np.array(directions, dtype=np.float64)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_the_ground_is_a_plane_and_the_sky_has_no_range():
    distance, category = lidar.cast(scene(), towards((1, 0, -0.5), (1, 0, 0.1), (1, 0, 0)))
    assert distance[0] == pytest.approx(-GROUND / 0.5 * np.hypot(1, 0.5), rel=1e-6)
    assert category[0] == ROAD
    assert np.isinf(distance[1:]).all()
    assert category[1:].tolist() == [0, 0]


def test_what_is_nearest_is_hit():
    boxes = [(10, 0, 0, 1, 1, 1, 0, CAR), (5, 0, 0, 1, 1, 1, 0, MANMADE)]
    distance, category = lidar.cast(scene(boxes), towards((1, 0, 0), (-1, 0, 0)))
    assert distance[0] == pytest.approx(4.0)
    assert category[0] == MANMADE
    assert np.isinf(distance[1])


def test_a_turned_box_is_met_at_its_corner():
    boxes = [(10, 0, 0, 1, 1, 1, np.pi / 4, CAR)]
    distance, _ = lidar.cast(scene(boxes), towards((1, 0, 0)))
    assert distance[0] == pytest.approx(10.0 - np.sqrt(2.0), rel=1e-4)


def test_a_long_box_is_turned_counter_clockwise():
    """A plank along the diagonal: what lies to the left is farther away."""
    boxes = [(10, 0, 0, 4, 0.01, 1, np.pi / 4, CAR)]
    distance, _ = lidar.cast(scene(boxes), towards((12, 2, 0), (60, -10, 0)))
    # Where y = x / 6 and y = -x / 6 meet y = x - 10.
    assert distance[0] == pytest.approx(np.hypot(12, 2), abs=0.05)
    assert distance[1] == pytest.approx(np.hypot(60, 10) / 7, abs=0.05)


def test_a_person_ends_at_its_height():
    cylinders = [(8, 0, 0.3, 0.0, PEDESTRIAN)]
    distance, category = lidar.cast(scene([], cylinders), towards((1, 0, -0.01), (1, 0, 0.01)))
    assert distance[0] == pytest.approx(7.7, rel=1e-3)
    assert category[0] == PEDESTRIAN
    assert np.isinf(distance[1])


def inside(world: Scene, place: np.ndarray) -> np.ndarray:
    """Category of what is at (K, 3) places, 0 for air: by each object's definition."""
    found = np.where(place[:, 2] <= GROUND, ROAD, 0)
    for centre, half, yaw, category in zip(
        world.centre, world.half, world.yaw, world.box, strict=True
    ):
        x, y, z = (place - centre).T
        along = np.stack([x * np.cos(yaw) + y * np.sin(yaw), y * np.cos(yaw) - x * np.sin(yaw), z])
        found = np.where((np.abs(along) <= half[:, None]).all(axis=0), category, found)
    for axis, radius, top, category in zip(
        world.axis, world.radius, world.top, world.cylinder, strict=True
    ):
        near = np.hypot(*(place[:, :2] - axis).T) <= radius
        found = np.where(near & (place[:, 2] <= top) & (place[:, 2] > GROUND), category, found)
    return found


def test_ranges_are_those_of_a_march_in_small_steps():
    rng = np.random.default_rng(4)
    boxes = []
    for _ in range(6):
        place = rng.uniform(3, 8, 2) * rng.choice([-1, 1], 2)
        boxes.append((*place, -1.0, *rng.uniform(0.3, 1.5, 3), rng.uniform(-3, 3), CAR))
    cylinders = [
        (*rng.uniform(4, 8, 2) * rng.choice([-1, 1], 2), 0.5, rng.uniform(-1, 2), PEDESTRIAN)
        for _ in range(6)
    ]
    world = scene(boxes, cylinders)
    direction = lidar.rays(40)[::5]
    distance, category = lidar.cast(world, direction)
    step = 0.01
    reach = np.arange(step, 12.0, step)
    hits = 0
    for ray, found, what in zip(direction, distance, category, strict=True):
        met = inside(world, reach[:, None] * ray.astype(np.float64))
        if not met.any():
            assert found > 12.0 - 2 * step
            continue
        first = int(np.argmax(met > 0))
        assert found == pytest.approx(reach[first], abs=2 * step)
        assert what == met[first] or met[first] == ROAD
        hits += int(what in (CAR, PEDESTRIAN))
    assert hits > 10


def test_rays_are_those_of_the_real_sensor(data_dir):
    path = data_dir / "lidar/nuscenes/samples/LIDAR_TOP/frame10.pcd.bin"
    real = np.fromfile(path, np.float32).reshape(-1, 5)
    elevation = np.degrees(np.arcsin(real[:, 2] / np.linalg.norm(real[:, :3], axis=1)))
    ours = np.degrees(np.arcsin(lidar.rays(1)[:, 2]))
    for ring in range(32):
        assert np.median(elevation[real[:, 4] == ring]) == pytest.approx(ours[ring], abs=0.1)
    assert real[:64, 4].tolist() == [*range(32), *range(32)]


def test_a_scan_has_the_form_of_a_real_frame():
    rng = np.random.default_rng(0)
    points, categories = lidar.scan(lidar.random_scene(rng), 1085, rng)
    assert points.shape == (34_720, 5)
    assert points.dtype == np.float32
    assert categories.dtype == np.uint8
    assert np.isfinite(points).all()
    assert np.linalg.norm(points[:, :3], axis=1).max() < 106.0
    assert (points[:, 3] == np.rint(points[:, 3])).all()
    assert 0 <= points[:, 3].min() <= points[:, 3].max() <= 255
    assert points[:64, 4].tolist() == [*range(32), *range(32)]
    # Real frames: 18 to 28 % returns of the vehicle itself, most others ground, walls and plants.
    assert 0.1 < (categories == EGO).mean() < 0.5


def test_every_class_is_in_some_street():
    seen: set[int] = set()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        _, categories = lidar.scan(lidar.random_scene(rng), 300, rng)
        seen |= set(TABLE[categories].tolist())
    assert seen == {IGNORED, *range(16)}


def test_a_written_frame_is_read_back(tmp_path):
    rng = np.random.default_rng(0)
    points, categories = lidar.scan(lidar.random_scene(rng), 4, rng)
    cloud = lidar.write_frame(tmp_path, "frame00", points, categories).read()
    assert np.array_equal(cloud.coord, points[:, :3])
    assert np.array_equal(cloud.label, TABLE[categories])
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.bin"))
    assert names == ["lidarseg/made/frame00_lidarseg.bin", "samples/LIDAR_TOP/frame00.pcd.bin"]
