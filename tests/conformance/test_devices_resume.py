"""A run on two devices that was stopped in the middle of an epoch ends as one that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.plan import expand, parse
from benchmarks.resuming import ResumeFiles
from benchmarks.store import Store
from tests.conformance.test_devices import planned
from tests.conformance.test_resume import TRAINING, VALIDATION, assert_equal, files, go, stopped

EVERY = 10
"""Batches between two questions of several devices."""


@pytest.mark.slow
def test_two_devices_resume_with_the_same_bits(tmp_path: Path) -> None:
    asked = ["dataset=JapaneseVowels", "attention=quest", "seed=0", "synthetic=true"]
    asked += ["protocol=tslib", "budget=smoke", "budget.max_epochs=3", "recipe.batch_size=2"]
    asked += ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.checkpoint_every_s=0"]
    (plan,) = expand(parse(asked))
    config = plan.config.to_dict()
    whole, broken = (
        Store(tmp_path / name).prepare(plan.key, config) for name in ("whole", "broken")
    )
    go(whole, config)
    cost = json.loads((whole.path / "result.json").read_text())["cost"]
    epoch = cost["steps"] // cost["epochs"]
    asks = -(-(epoch - 1) // EVERY)
    assert asks >= 2, "an epoch has no middle"

    middle = epoch + EVERY + 1
    assert stopped(broken, config, TRAINING, asks + 2) == f"stopped in epoch 1, step {middle}"
    assert files(broken) == ["main.inside.ckpt", "main.resume.ckpt"]
    here = ResumeFiles(broken, "main", 2).position()
    assert here is not None
    assert (here.epoch, here.batch, here.step) == (1, EVERY + 1, middle)
    # Each process has summed up its part of the epoch: one alone begins the epoch anew.
    alone = ResumeFiles(broken, "main", 1).position()
    assert alone is not None
    assert (alone.epoch, alone.batch, alone.step) == (1, 0, epoch)

    assert stopped(broken, config, VALIDATION, 1) == f"stopped in epoch 1, step {2 * epoch}"
    go(broken, config)
    assert_equal(whole, broken)
    assert files(broken) == ["main.pt"]


@pytest.mark.slow
def test_two_devices_that_share_the_weights_resume_with_the_same_bits(tmp_path: Path) -> None:
    asked = ["budget.max_epochs=2", "recipe.batch_size=1", "trainer.devices=2"]
    asked += ["trainer.strategy=fsdp", "trainer.checkpoint_every_s=0"]
    plan = planned("language", *asked)
    config = plan.config.to_dict()
    whole, broken = (
        Store(tmp_path / name).prepare(plan.key, config) for name in ("whole", "broken")
    )
    go(whole, config)
    # Two batches an epoch: the devices ask one another after the first.
    assert stopped(broken, config, TRAINING, 2) == "stopped in epoch 1, step 3"
    assert files(broken) == ["main.inside.ckpt", "main.resume.ckpt"]
    go(broken, config)
    assert_equal(whole, broken)
    assert files(broken) == ["main.pt"]
