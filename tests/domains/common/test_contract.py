"""Values of a recipe that could only fail later are refused when it is built."""

from __future__ import annotations

import pytest
from torch import nn

from benchmarks.config import compose_run, run_config
from domains.base import build_optimizer
from domains.contract import OPTIMIZERS, OptimizerConfig

NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optimizer.name", "adamq", "'adamq' is unknown; allowed: adam, adamw, radam, sgd"),
        ("optimizer.lr", 0.0, "=0.0 must be a number above 0"),
        ("optimizer.lr", NAN, "=nan must be a number above 0"),
        ("optimizer.weight_decay", -0.1, "=-0.1 must be a number from 0"),
        ("optimizer.betas", [0.9], r"=\[0.9\] must be two numbers from 0 to below 1"),
        ("optimizer.betas", [0.9, 1.0], r"=\[0.9, 1.0\] must be two numbers"),
        ("optimizer.eps", 0.0, "=0.0 must be a number above 0"),
        ("schedule.name", "linear", "'linear' is unknown; allowed: constant, cosine"),
        ("schedule.interval", "batch", "'batch' is unknown; allowed: step, epoch"),
        ("schedule.warmup", -1, "=-1 must be at least 0"),
        ("schedule.final", 1.5, "=1.5 must be from 0 to 1"),
        ("max_epochs", 0, "=0 must be at least 1"),
        ("batch_size", 0, "=0 must be at least 1"),
        ("gradient_clip", 0.0, "=0.0 must be above 0, or null for no clipping"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused_before_a_run(key, value, message):
    composed = compose_run({"domain": "timeseries"}, {f"recipe.{key}": value})
    with pytest.raises(ValueError, match=f"recipe.{key}=?{message}"):
        run_config(composed)


def test_every_optimizer_that_a_recipe_may_name_can_be_built():
    for name in OPTIMIZERS:
        assert build_optimizer(nn.Linear(2, 2), OptimizerConfig(name=name)).param_groups
