"""Success rates of a part of the grid (`make test-nightly`): minutes, not seconds."""

from __future__ import annotations

from functools import cache

import pytest

from domains.toy.outcomes import outcome
from tests.domains.toy.helpers import Config, DatasetConfig, recipe, together

RATES = (0.001, 0.005, 0.01)


@cache
def success(variant: str) -> float:
    """Share of correct runs in %: three learning rates, 5 data sets x 5 initialisations."""
    outcomes = []
    for data_seed in range(5):
        cfgs = [
            Config(dataset=DatasetConfig(seed=data_seed), recipe=recipe(lr), seed=seed)
            for lr in RATES
            for seed in range(5)
        ]
        for history in together(cfgs, variant, 50).histories:
            outcomes.append(outcome(history[-1]["train/accuracy"], history[-1]["test/accuracy"]))
    return 100.0 * outcomes.count("test/correct") / len(outcomes)


@pytest.mark.nightly
def test_quest_succeeds_more_often_than_standard() -> None:
    """Bounds of the suite's own reference runs, which are intervals over the seeds."""
    assert 45.0 <= success("quest") <= 80.0
    assert success("quest") - success("standard") >= 15.0


@pytest.mark.nightly
def test_a_fixed_scale_never_succeeds() -> None:
    assert success("qknorm") == 0.0
