"""Learning rates as functions of progress."""

from __future__ import annotations

import math

import numpy as np
import pytest

from domains.common.schedules import schedule_factor
from domains.contract import ScheduleConfig
from tests.domains.graph.helpers import stored


def factors(total: int, warmup: int, name: str = "cosine_from_zero") -> list[float]:
    config = ScheduleConfig(name, "epoch", warmup)
    return [schedule_factor(config, epoch, total) for epoch in range(total)]


@pytest.mark.parametrize(
    ("total", "warmup", "expected"),
    [
        (2000, 50, {0: 1e-6, 1: 0.02, 49: 0.98, 50: 1.0, 1999: 6.5e-7}),
        (100, 5, {0: 1e-6, 1: 0.2, 99: 2.7e-4}),
    ],
)
def test_published_check_values_of_the_warm_up_from_zero(
    total: int, warmup: int, expected: dict[int, float]
) -> None:
    found = factors(total, warmup)
    for epoch, factor in expected.items():
        assert found[epoch] == pytest.approx(factor, rel=0.02 if factor < 1e-3 else 1e-12)


@pytest.mark.parametrize(("total", "warmup"), [(100, 5), (2000, 50)])
def test_the_warm_up_from_zero_equals_the_reference(total: int, warmup: int) -> None:
    vectors = stored("graph_heads_losses_metrics")[f"cosine_with_warmup.T{total}_W{warmup}"]
    np.testing.assert_allclose(factors(total, warmup), vectors, rtol=0, atol=1e-12)


def test_the_other_warm_up_starts_above_zero_and_reaches_one_behind_it() -> None:
    found = factors(20, 4, "cosine")
    assert found[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found[12] == pytest.approx(0.5)
    assert factors(20, 4, "constant")[3:6] == [0.8, 1.0, 1.0]


def test_a_final_factor_bounds_the_fall() -> None:
    config = ScheduleConfig("cosine_from_zero", "epoch", 2, final=0.1)
    assert schedule_factor(config, 10, 10) == pytest.approx(0.1)
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))
    assert schedule_factor(config, 6, 10) == pytest.approx(middle)
