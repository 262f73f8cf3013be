"""Codes and patches against the reference's numbers and against slow loops."""

from __future__ import annotations

import itertools

import pytest
import torch

from domains.pointcloud.config import ORDERS
from domains.pointcloud.serialization import MAX_SCENES, encode, patches_of, ranks

from .clouds import stored


def whole_grid(edge: int) -> torch.Tensor:
    steps = torch.arange(edge)
    return torch.cartesian_prod(steps, steps, steps)


def one_scene(grid: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(grid), dtype=torch.long)


def test_codes_and_orders_equal_the_reference():
    given = stored("ptv3_serialization")
    codes, depth = encode(given["random_coord_xyz"], given["random_batch"], ORDERS)
    order, inverse = ranks(codes)
    assert depth == given["random_depth"]
    for row, name in enumerate(ORDERS):
        assert torch.equal(codes[row], given[f"random_code_{name}"]), name
        assert torch.equal(order[row], given[f"random_order_{name}"]), name
        assert torch.equal(inverse[row], given[f"random_inverse_{name}"]), name


def test_codes_of_a_whole_grid_equal_the_reference():
    given = stored("ptv3_serialization")
    grid = given["grid8_coord_xyz"]
    codes, _ = encode(grid, one_scene(grid), ORDERS)
    for row, name in enumerate(ORDERS):
        assert torch.equal(codes[row], given[f"grid8_code_{name}"]), name


@pytest.mark.parametrize("number", range(6))
def test_patches_equal_the_reference(number):
    given = stored("ptv3_serialization")
    sizes = given[f"pad{number}_scene_sizes"].reshape(-1)
    patches = patches_of(sizes, int(given["pad_patch_size"]))
    assert torch.equal(patches.pad, given[f"pad{number}_pad"])
    assert torch.equal(patches.unpad, given[f"pad{number}_unpad"])
    assert torch.equal(patches.ends, given[f"pad{number}_cu_seqlens"])


def slow_z(x: int, y: int, z: int) -> int:
    code = 0
    for bit in range(16):
        for value, place in ((x, 2), (y, 1), (z, 0)):
            code |= (value >> bit & 1) << 3 * bit + place
    return code


def slow_hilbert(x: int, y: int, z: int, depth: int) -> int:
    """Skilling's transform, one point at a time, as his paper states it."""
    point = [x, y, z]
    level = 1 << depth - 1
    while level > 1:
        below = level - 1
        for axis in range(3):
            if point[axis] & level:
                point[0] ^= below
            else:
                exchanged = (point[0] ^ point[axis]) & below
                point[0] ^= exchanged
                point[axis] ^= exchanged
        level >>= 1
    for axis in (1, 2):
        point[axis] ^= point[axis - 1]
    flipped, level = 0, 1 << depth - 1
    while level > 1:
        if point[2] & level:
            flipped ^= level - 1
        level >>= 1
    return slow_z(*(value ^ flipped for value in point))


@pytest.mark.parametrize("order", ORDERS)
def test_codes_of_a_grid_of_16_equal_a_slow_loop_and_are_all_different(order):
    grid = whole_grid(16)
    (codes,), depth = encode(grid, one_scene(grid), [order])
    assert depth == 4
    assert torch.equal(codes.sort().values, torch.arange(16**3))
    for (x, y, z), code in zip(grid.tolist(), codes.tolist(), strict=True):
        first, second = (y, x) if order.endswith("trans") else (x, y)
        slow = slow_hilbert(first, second, z, 4) if "hilbert" in order else slow_z(first, second, z)
        assert code == slow, (x, y, z)


@pytest.mark.parametrize("order", ORDERS)
def test_neighbours_on_a_curve_are_near_in_space(order):
    grid = whole_grid(16)
    (codes,), _ = encode(grid, one_scene(grid), [order])
    steps = grid[codes.argsort()].diff(dim=0).abs().sum(1)
    if "hilbert" in order:
        assert steps.max() == 1
    else:
        # Half of all steps of a z-curve go to a touching cell, and its jumps halve in number.
        assert (steps == 1).float().mean() >= 0.5
        assert steps.float().mean() < 2.0


@pytest.mark.parametrize("order", ORDERS)
def test_the_curve_of_a_scene_does_not_depend_on_its_batch(order):
    """On purpose unlike the reference, whose Hilbert curve turns with the batch's largest scene."""
    edges = (1, 2, 3, 7, 20, 100, 300, 5000)
    generator = torch.Generator().manual_seed(0)
    grids = [torch.randint(edge, (40, 3), generator=generator) for edge in edges]
    batch = torch.repeat_interleave(torch.tensor([len(grid) for grid in grids]))
    (together,), depth = encode(torch.cat(grids), batch, [order])
    for number, grid in enumerate(grids):
        (alone,), _ = encode(grid, one_scene(grid), [order])
        assert torch.equal(together[batch == number] - (number << 3 * depth), alone), edges[number]


def test_the_largest_coordinates_and_scenes_fit():
    grid = torch.tensor([[2**16 - 1] * 3, [0, 0, 0]])
    codes, depth = encode(grid, torch.tensor([0, MAX_SCENES - 1]), ORDERS)
    assert depth == 16
    assert (codes >= 0).all()
    assert (codes[:, 0] < codes[:, 1]).all()


@pytest.mark.parametrize("value", [-1, 2**16])
def test_coordinates_that_do_not_fit_are_refused(value):
    grid = torch.tensor([[0, 0, value]])
    with pytest.raises(ValueError, match=r"recipe\.grid_size"):
        encode(grid, one_scene(grid), ["z"])


def test_too_many_scenes_are_refused():
    with pytest.raises(ValueError, match="32769 scenes"):
        encode(torch.zeros(1, 3, dtype=torch.long), torch.tensor([MAX_SCENES]), ["z"])


def slow_patches(sizes: list[int], size: int) -> tuple[list[int], list[int]]:
    """Places by the rule in words: a last patch borrows the same slots of the patch before."""
    pad: list[int] = []
    ends = [0]
    start = 0
    for scene in sizes:
        line = list(range(start, start + scene))
        patches = [line[first : first + size] for first in range(0, scene, size)]
        if len(patches) > 1:
            own = len(patches[-1])
            patches[-1] = patches[-1] + patches[-2][own:]
        for patch in patches:
            pad += patch
            ends.append(len(pad))
        start += scene
    return pad, ends


SIZES = (1, 7, 8, 9, 2 * 8 + 3)


@pytest.mark.parametrize("sizes", [*((size,) for size in SIZES), *itertools.permutations(SIZES, 3)])
def test_patches_equal_a_slow_loop(sizes):
    patches = patches_of(torch.tensor(sizes), 8)
    pad, ends = slow_patches(list(sizes), 8)
    assert patches.pad.tolist() == pad
    assert patches.ends.tolist() == ends
    assert patches.pad[patches.unpad].tolist() == list(range(sum(sizes)))
