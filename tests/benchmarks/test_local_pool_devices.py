"""The local launcher where runs need different numbers of devices: real processes, made-up GPUs."""

from __future__ import annotations

import threading

import pytest

from benchmarks.launch.slots import Share, Slots
from benchmarks.launch.start import gpus_for
from tests.benchmarks.pool_bench import Bench, until

GPUS = ("0", "1", "2")


def test_the_gpus_of_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("benchmarks.launch.start.gpu_count", lambda: 3)
    assert gpus_for("auto", 1) == ("0", "1", "2")
    assert gpus_for([3, 1], 2) == ("3", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert gpus_for("auto", 1) == ("6", "7")
    with pytest.raises(ValueError, match=r"trainer\.devices=3 must be at most 2"):
        gpus_for("auto", 3)


def test_places_of_a_machine() -> None:
    slots = Slots(3, GPUS)
    one, two = Share(1, ("0",)), Share(2, ("0", "1"))
    assert slots.place(1, []) == one
    assert slots.place(1, [one]) == Share(1, ("1",))
    assert slots.place(2, [one]) == Share(2, ("1", "2"))
    assert slots.place(1, [two]) == Share(1, ("2",))
    assert slots.place(2, [two]) is None
    # More runs than GPUs: they are spread, and a run of two still has two.
    shared = Slots(4, ("0", "1"))
    assert shared.place(1, [one]) == Share(1, ("1",))
    assert shared.place(2, [one, Share(1, ("1",))]) == two
    assert shared.place(2, [one, one]) is None, "it would see the same GPU twice"
    # Without GPUs, or with fewer places than GPUs, a run has at most all places.
    assert Slots(2).place(3, []) == Share(3)
    assert Slots(2).place(3, [Share(1)]) is None
    assert Slots(1, ("0", "1")).place(2, []) == two


def test_what_a_waiting_run_leaves_to_smaller_ones() -> None:
    slots = Slots(4)
    assert slots.leaves_room(1, [Share(1)] * 3, waiting=[])
    # A run of three waits: of four places the small ones may have one.
    assert slots.leaves_room(1, [Share(3)], waiting=[3])
    assert slots.leaves_room(1, [], waiting=[3])
    assert not slots.leaves_room(1, [Share(1)], waiting=[3])
    assert not slots.leaves_room(2, [], waiting=[3])
    assert not slots.leaves_room(1, [], waiting=[5])


def overlaps(bench: Bench, devices: dict[int, int], places: int) -> list[set[int]]:
    """Which runs were under way together, from one begin or end to the next.

    Args:
        bench: where they ran.
        devices: that each needs.
        places: never more than these were taken.
    """
    running: set[int] = set()
    seen: list[set[int]] = []
    for line in bench.executed():
        what, seed, *_ = line.split()
        if what == "begin":
            running.add(int(seed))
        elif what == "end":
            running.remove(int(seed))
        seen.append(set(running))
        assert sum(min(places, devices[one]) for one in running) <= places, seen
    return seen


def test_a_run_of_two_gpus_beside_runs_of_one(bench: Bench) -> None:
    devices = {seed: 2 if seed in (1, 3) else 1 for seed in range(16)}
    configs = [
        bench.config(seed, "gpus", devices=count, seconds=0.2) for seed, count in devices.items()
    ]
    assert bench.run(configs, workers=3, gpus=GPUS).counts == {"done": 16}
    seen = overlaps(bench, devices, 3)
    lines = [line.split() for line in bench.executed() if line.startswith("sees")]
    visible = {int(seed): gpus.split(",") for _, seed, gpus in lines}
    assert {seed: len(gpus) for seed, gpus in visible.items()} == devices
    for running in seen:
        used = [gpu for seed in running for gpu in visible[seed]]
        assert len(set(used)) == len(used), "two runs shared a GPU"
        assert set(used) <= set(GPUS)
    assert any(len(running) == 2 and running & {1, 3} for running in seen), "nothing was beside it"
    ones = {gpu for seed, gpus in visible.items() if devices[seed] == 1 for gpu in gpus}
    assert ones == set(GPUS), "an idle worker kept its GPUs"
    begun = [int(line.split()[1]) for line in bench.executed() if line.startswith("begin")]
    assert begun.index(3) < begun.index(15), "the runs of one came first"


def test_without_gpus_a_run_of_two_has_the_place_of_two(bench: Bench) -> None:
    devices = {0: 1, 1: 2, 2: 1, 3: 5}
    configs = [bench.config(seed, devices=count, seconds=0.3) for seed, count in devices.items()]
    assert bench.run(configs, workers=2).counts == {"done": 4}
    seen = overlaps(bench, devices, 2)
    assert {1} in seen
    assert {3} in seen, "a run that needs more than there is runs alone"
    assert {0, 2} in seen


def test_a_run_of_two_that_comes_late_has_its_turn(bench: Bench) -> None:
    """Symptom: small runs took each place that became free, and the large one never began."""
    late = bench.config(0, devices=2, seconds=0.2, epochs=1)
    other = bench.program([{**late, "seconds": 8.0}])
    until(lambda: bench.state(0) == "running")
    dies = threading.Timer(1.0, other.kill)
    dies.start()
    # Of different lengths, so that their places never become free at once.
    small = [bench.config(seed, epochs=1, seconds=0.3 + 0.1 * (seed % 3)) for seed in range(1, 31)]
    summary = bench.run([*small, late], workers=2)
    dies.join()
    other.communicate()
    assert summary.counts == {"done": 31}
    lines = bench.executed()[1:]  # the first is the other runner's
    place = lines.index("begin 0 ok")
    assert sum(line.startswith("begin") for line in lines[place:]) > 5, "it was the last"
    assert lines[place + 1] == "end 0 ok", "something ran beside it"


def test_a_dead_worker_of_two_is_replaced(bench: Bench) -> None:
    configs = [
        bench.config(0, "die_once", devices=2, seconds=0.1),
        *(bench.config(seed, seconds=0.1) for seed in (1, 2)),
    ]
    assert bench.run(configs, workers=2, gpus=("0", "1")).counts == {"done": 3}
    bench.assert_done(0, 2)
