"""Selection and early stopping, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.callbacks import BestWeights
from domains.contract import Selection


def follow(selection: Selection | None, values: list[float]) -> tuple[BestWeights, Any, nn.Module]:
    """Let the callback see one value an epoch, until it stops; weights are the epoch's number."""
    best = BestWeights(selection)
    module = nn.Linear(1, 1, bias=False)
    strategy = SimpleNamespace(
        broadcast=lambda value: value, lightning_module_state_dict=module.state_dict
    )
    trainer: Any = SimpleNamespace(should_stop=False, callback_metrics={}, strategy=strategy)
    for epoch, value in enumerate(values):
        nn.init.constant_(module.weight, float(epoch))
        trainer.current_epoch, trainer.global_step = epoch, 10 * (epoch + 1)
        trainer.callback_metrics = {"val/accuracy": torch.tensor(value)}
        best.on_train_epoch_end(trainer, module)
        if trainer.should_stop:
            break
    return best, trainer, module


@pytest.mark.parametrize(
    ("ties", "values", "kept", "stopped_after"),
    [
        # TSLib's rule: an equal accuracy is a new best, and patience starts anew.
        ("later", [50, 60, 60, 59, 58, 57], 2, 5),
        ("earlier", [50, 60, 60, 59, 58, 57], 1, 4),
        ("later", [60, 50, 60, 50, 60, 50], 4, None),
        ("earlier", [60, 50, 60, 50, 60, 50], 0, 3),
    ],
)
def test_ties_and_patience(
    ties: Any, values: list[float], kept: int, stopped_after: int | None
) -> None:
    selection = Selection("val/accuracy", "max", patience=3, ties=ties)
    best, trainer, module = follow(selection, values)
    assert best.epoch == kept
    assert best.step == 10 * (kept + 1)
    assert trainer.should_stop == (stopped_after is not None)
    if stopped_after is not None:
        assert trainer.current_epoch == stopped_after
    best.restore(module)  # type: ignore[arg-type]
    assert module.weight.item() == kept


def test_the_smallest_value_wins_where_less_is_better() -> None:
    best, _, _ = follow(Selection("val/accuracy", "min"), [3.0, 1.0, 2.0])
    assert (best.epoch, best.best) == (1, 1.0)


@pytest.mark.parametrize(
    ("decimals", "kept"),
    # 0.123451 and 0.123449 are 0.12345 with five decimals: the first of them wins.
    [(None, 2), (5, 1), (3, 0)],
)
def test_values_may_be_rounded_before_they_are_compared(decimals: int | None, kept: int) -> None:
    selection = Selection("val/accuracy", "min", decimals=decimals)
    best, _, _ = follow(selection, [0.12349, 0.123451, 0.123449, 0.2])
    assert best.epoch == kept


def test_nan_is_never_the_best() -> None:
    best, _, _ = follow(Selection("val/accuracy", "max"), [float("nan"), 1.0, float("nan")])
    assert best.epoch == 1


def test_without_a_selection_the_last_weights_stay() -> None:
    best, _, module = follow(None, [3.0, 1.0])
    best.restore(module)  # type: ignore[arg-type]
    assert (best.epoch, module.weight.item()) == (1, 1.0)


def test_its_state_survives_a_resume() -> None:
    first, _, _ = follow(Selection("val/accuracy", "max", patience=3), [1.0, 5.0, 4.0])
    second = BestWeights(Selection("val/accuracy", "max", patience=3))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()


def test_a_metric_that_was_not_logged_is_named() -> None:
    with pytest.raises(ValueError, match=r"val/miou.*logged: val/accuracy"):
        follow(Selection("val/miou", "max"), [1.0])
