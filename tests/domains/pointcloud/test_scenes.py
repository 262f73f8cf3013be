"""Scenes laid end to end, Mix3D, and the parts of a test with the way back to all points."""

from __future__ import annotations

import pytest
import torch

from domains.pointcloud import grid
from domains.pointcloud.batch import IGNORED
from domains.pointcloud.scenes import FINE_GRID, Points, augmented, collate, read, thin
from domains.pointcloud.tiny import made_frame
from domains.pointcloud.transforms import VIEWS


def points(number: int, seed: int = 0) -> Points:
    """Crowded: about three points in a cell of 5 cm."""
    generator = torch.Generator().manual_seed(seed)
    coord = (torch.rand(number, 3, generator=generator) - 0.5) * 0.5
    intensity = torch.rand(number, 1, generator=generator)
    label = torch.randint(-1, 16, (number,), generator=generator)
    return Points(coord, intensity, label)


def thinned(number: int, seed: int = 0):
    return thin(points(number, seed), 0.05, torch.Generator().manual_seed(seed))


def test_a_frame_becomes_tensors():
    frame = made_frame("a", 10)
    cloud, found = frame.read(), read(frame)
    assert found.coord.dtype == found.intensity.dtype == torch.float32
    assert found.coord.numpy().tobytes() == cloud.coord.tobytes()
    assert found.intensity.shape == (320, 1)
    assert found.label.dtype == torch.int64


def test_what_the_grid_keeps_stays_together():
    whole = points(400)
    kept = thin(whole, 0.05, torch.Generator().manual_seed(0))
    places = whole.coord.tolist()
    rows = [places.index(point) for point in kept.coord.tolist()]
    assert torch.equal(kept.intensity, whole.intensity[rows])
    assert torch.equal(kept.label, whole.label[rows])
    assert torch.equal(kept.full_label, whole.label)
    assert torch.equal(kept.grid, grid.cells(whole.coord, 0.05)[rows])
    assert torch.equal(kept.grid[kept.inverse], grid.cells(whole.coord, 0.05))


def test_scenes_lie_end_to_end():
    scenes = [thinned(number, number) for number in (300, 20, 150)]
    batch = collate(scenes, "val")
    sizes = [len(scene.coord) for scene in scenes]
    assert batch.offset.tolist() == torch.tensor(sizes).cumsum(0).tolist()
    assert batch.batch.tolist() == [0] * sizes[0] + [1] * sizes[1] + [2] * sizes[2]
    assert torch.equal(batch.feat[:, :3], batch.coord)
    assert batch.feat.shape == (sum(sizes), 4)
    assert batch.grid.dtype == batch.label.dtype == batch.offset.dtype == torch.int64
    assert torch.equal(batch.feat[:, 3:], torch.cat([scene.intensity for scene in scenes]))
    assert batch.inverse is not None
    assert batch.full_label is not None
    # Every point of the files leads to a kept point of its own scene and cell.
    origin = torch.cat([grid.cells(points(n, n).coord, 0.05) for n in (300, 20, 150)])
    assert torch.equal(batch.grid[batch.inverse], origin)
    scene_of = torch.repeat_interleave(torch.arange(3), torch.tensor([300, 20, 150]))
    assert torch.equal(batch.batch[batch.inverse], scene_of)
    assert torch.equal(batch.full_label, torch.cat([points(n, n).label for n in (300, 20, 150)]))


def test_training_keeps_no_way_back():
    batch = collate([thinned(50)], "train")
    assert batch.inverse is None
    assert batch.full_label is None
    assert batch.split == "train"


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 12])
def test_mix3d_makes_one_scene_of_each_pair(number):
    """As `point_collate_fn` of Pointcept cuts the offsets: an odd scene stays alone."""
    scenes = [thinned(30 + 7 * n, n) for n in range(number)]
    plain, mixed = collate(scenes, "train"), collate(scenes, "train", mixed=True)
    ends = plain.offset.tolist()
    assert mixed.offset.tolist() == sorted({*ends[1::2], ends[-1]})
    assert torch.equal(mixed.batch, plain.batch // 2)
    # The points are the same and the cells still count from each scene's own corner.
    for key in ("coord", "grid", "feat", "label"):
        assert torch.equal(getattr(mixed, key), getattr(plain, key))


def test_every_point_is_predicted_in_every_view():
    whole = points(600)
    scene = augmented(whole, 0.05, torch.Generator().manual_seed(0))
    fine = grid.sample(whole.coord, FINE_GRID, torch.Generator().manual_seed(0))
    coord = whole.coord[fine.index]
    assert scene.num_points == len(coord)
    assert torch.equal(scene.inverse, fine.inverse)
    assert torch.equal(scene.full_label, whole.label)
    part = 0
    for scale, mirrored in VIEWS:
        side = -scale if mirrored else scale
        shown = coord * torch.tensor([side, side, scale])
        cells = grid.cells(shown, 0.05)
        fullest = int(grid.group(cells).count.max())
        covered = set()
        for batch, rows in zip(
            scene.parts[part : part + fullest], scene.points[part : part + fullest], strict=True
        ):
            torch.testing.assert_close(batch.coord, shown[rows])
            assert torch.equal(batch.grid, cells[rows])
            assert len(torch.unique(batch.grid, dim=0)) == len(rows)
            assert batch.offset.tolist() == [len(rows)]
            assert batch.batch.unique().tolist() == [0]
            assert torch.equal(batch.feat[:, 3], whole.intensity[fine.index][rows, 0])
            assert batch.label.unique().tolist() == [IGNORED]
            covered |= set(rows.tolist())
        assert covered == set(range(len(coord)))
        part += fullest
    assert part == len(scene.parts) == len(scene.points)


def test_perfect_parts_give_perfect_points():
    """Votes that say where a point lies come back to it through both maps."""
    whole = points(500)
    scene = augmented(whole, 0.05, torch.Generator().manual_seed(0))
    votes = torch.zeros(scene.num_points, 8)
    for batch, rows in zip(scene.parts, scene.points, strict=True):
        octant = (batch.feat[:, 0].abs() > 0.1).long() + 2 * (batch.feat[:, 2] > 0).long()
        votes[rows, octant] += 1
    found = votes.argmax(1)[scene.inverse]
    above = (whole.coord[:, 2] > 0).long()
    clear = whole.coord[:, 2].abs() > FINE_GRID
    assert torch.equal(found[clear] // 2, above[clear])
