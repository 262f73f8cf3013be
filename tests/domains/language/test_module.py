"""Training and evaluation of both families through the engine, on made-up data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.config import choices, compose_run, run_config
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build, execute
from benchmarks.store import Run, RunEnded, Store
from domains.common.schedules import schedule_factor
from domains.contract import PhaseResult, ScheduleConfig
from domains.language.config import ATTACK_RATES
from domains.language.domain import DOMAIN
from domains.language.module import LanguageModule
from domains.language.stream import Batch

from .networks import options_of, tokens, variants

SMALL = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 2,
    "model.head_width": 8,
    "model.feedforward": 16,
    "recipe.segment": 8,
    "recipe.window": 12,
    "recipe.batch_size": 2,
    "recipe.steps_per_epoch": 1,
    "recipe.schedule.warmup": 0,
}
XL = {"recipe": "transformer_xl", "model.memory": 6}
RECIPES = {"transformer": {}, "transformer_xl": XL}


def planned(variant: str = "standard", **overrides: Any) -> Planned:
    keys = {**SMALL, "dataset": "default", "seed": 0, "synthetic": "true", **overrides}
    keys |= {f"attention.{name}": value for name, value in options_of(variant).items()}
    arguments = [f"{key}={str(value).lower()}" for key, value in keys.items()]
    (found,) = expand(parse(["domain=language", f"attention={variant}", *arguments]))
    return found


def run_of(root: Path, plan: Planned) -> Run:
    return Store(root).prepare(plan.key, plan.config.to_dict())


def go(run: Run, plan: Planned, stop_before: int | None = None) -> dict[str, Any]:
    """Train; the result as it was stored. May be asked to stop before a batch."""
    seen = iter(range(10**9))

    def should_stop() -> str | None:
        number = next(seen)
        return "interrupted" if stop_before is not None and number >= stop_before else None

    execute(run, plan.config.to_dict(), lambda event: None, should_stop)
    found: dict[str, Any] = json.loads((run.path / "result.json").read_text())
    return found


def module_of(**overrides: Any) -> LanguageModule:
    cfg = planned(**overrides).config
    phase = DOMAIN.next_phase(cfg, [])
    assert phase is not None
    _, module = build(DOMAIN, cfg, phase)
    assert isinstance(module, LanguageModule)
    return module


def batch(sequence: torch.Tensor, reset: bool) -> Batch:
    return Batch(sequence[:, :-1], sequence[:, 1:], "train", reset)


@pytest.mark.parametrize("variant", variants("transformer_xl"))
def test_transformer_xl_trains_with_every_variant(variant: str, tmp_path: Path) -> None:
    """The other family does so in the conformance tests."""
    plan = planned(variant, **XL, **{"budget.max_epochs": 2})
    result = go(run_of(tmp_path, plan), plan)
    assert result["primary_metric"]["name"] == "test/ppl_xl"
    assert all(math.isfinite(value) for value in result["metrics"].values())


@pytest.mark.parametrize(
    ("recipe", "protocol"),
    [("transformer", "sliding"), ("transformer", "segments"), ("transformer_xl", "xl")],
)
def test_a_result_holds_every_metric_of_its_protocol(
    recipe: str, protocol: str, tmp_path: Path
) -> None:
    plan = planned(**RECIPES[recipe], protocol=protocol, **{"budget.max_epochs": 1})
    result = go(run_of(tmp_path, plan), plan)
    metrics = result["metrics"]
    assert set(metrics) == set(result["metric_info"])
    assert {f"test/ppl_{protocol}_attack{rate}" for rate in ATTACK_RATES} < set(metrics)
    assert {f"test/ppl_{protocol}", f"val/ppl_{protocol}", "test/ppl_unigram"} < set(metrics)
    assert ("test/ppl_sliding" in metrics) == (protocol != "segments")
    # Validation and the test's own segments are two ways to the same number.
    assert metrics["val/ppl_segments"] == pytest.approx(math.exp(metrics["val/loss"]), rel=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_ends_with_the_same_bits(recipe: str, tmp_path: Path) -> None:
    """Epochs of one step over two segments: the second and fourth go on with the first's memory."""
    limits = {"budget.max_epochs": 4, "trainer.checkpoint_every_s": 0}
    plan = planned(**RECIPES[recipe], **limits)
    whole, broken = run_of(tmp_path / "whole", plan), run_of(tmp_path / "broken", plan)
    expected = go(whole, plan)
    for stop_before in (1, 2):
        with pytest.raises(RunEnded, match="interrupted"):
            go(broken, plan, stop_before)
    found = go(broken, plan)
    assert found["metrics"] == expected["metrics"]
    assert found["selected"] == expected["selected"]
    weights = [torch.load(run.path / "checkpoints" / "main.pt") for run in (whole, broken)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not any("memory" in name for name in weights[0])


def test_memory_lives_from_step_to_step_until_the_stream_begins_anew() -> None:
    module = module_of(**XL)
    module.eval()
    first, second = tokens(2, 8, seed=1), tokens(2, 8, seed=2)
    module.loss(batch(first, reset=True))
    remembered = module.memory
    assert remembered is not None
    assert [layer.shape for layer in remembered.layers] == [(2, 6, 16)] * 2
    after = module.loss(batch(second, reset=False))
    anew = module.loss(batch(second, reset=True))
    without, _ = module.net.log_likelihood(second[:, :-1], second[:, 1:])
    assert anew == -without.mean()
    assert after != anew


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_batch_can_be_learnt(recipe: str) -> None:
    module = module_of(**RECIPES[recipe], **{"model.dropout": 0.0})
    optimizer = torch.optim.Adam(module.net.parameters(), 0.01)
    one = batch(tokens(2, 8), reset=True)
    first = float(module.loss(one).detach())
    assert abs(first - math.log(len(module.net.softmax.bias))) < 0.3, "uniform at the start"
    for _ in range(120):
        optimizer.zero_grad()
        loss = module.loss(one)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.3


def test_the_option_of_the_position_term_is_recorded(tmp_path: Path) -> None:
    plan = planned("quest", **XL, **{"model.relative": "content", "budget.max_epochs": 1})
    run = run_of(tmp_path, plan)
    assert go(run, plan)["model"] == "transformer_xl_2x16_content"
    assert run.config()["model"]["relative"] == "content"


def test_a_memory_protocol_needs_a_memory() -> None:
    with pytest.raises(ValueError, match=r"protocol=xl needs model\.family=transformer_xl"):
        module_of(protocol="xl")


@pytest.mark.parametrize("group", ["dataset", "recipe"])
def test_every_choice_of_the_domain_composes(group: str) -> None:
    names = choices(group, "language")
    assert len(names) > 3
    for name in names:
        chosen = compose_run({"domain": "language", group: name}, {})
        assert getattr(run_config(chosen), group).name == name


def test_recipes_are_the_published_ones() -> None:
    """Steps of the whole schedule, tokens of a step, and what all have in common."""
    expected = {
        "transformer_small": (500_000, 96 * 256, "sliding", 2000),
        "transformer_medium": (400_000, 56 * 384, "sliding", 2000),
        "transformer_xl": (200_000, 60 * 150, "xl", 0),
    }
    for name, (steps, tokens_a_step, protocol, warmup) in expected.items():
        cfg = run_config(compose_run({"domain": "language", "recipe": name}, {}))
        recipe = cfg.recipe
        assert (cfg.model.name, recipe.name, cfg.protocol) == (name, name, protocol)
        assert recipe.max_epochs * recipe.steps_in_epoch(123) == steps
        assert recipe.batch_size * recipe.segment == tokens_a_step
        assert recipe.schedule.warmup == warmup
        assert (recipe.gradient_clip, recipe.optimizer.name) == (0.25, "adam")
        assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (0.00025, 0.0)


def test_the_cosine_counts_from_the_first_step() -> None:
    """By hand: the warm-up starts at 0, and the curve does not know of it."""
    schedule = ScheduleConfig(name="cosine_from_start", warmup=2000)
    for step, factor in (
        (0, 0.0),
        (1, 1 / 2000),
        (1999, 1999 / 2000),
        (2000, (1 + math.cos(math.pi * 2000 / 500_000)) / 2),
        (250_000, 0.5),
        (500_000, 0.0),
    ):
        assert schedule_factor(schedule, step, 500_000) == pytest.approx(factor, abs=1e-12)


def test_the_best_validation_selects_and_is_reported() -> None:
    cfg = planned(**{"budget.max_epochs": 3}).config
    phase = DOMAIN.next_phase(cfg, [])
    assert phase is not None
    assert phase.max_epochs == 3
    assert phase.selection is not None
    assert (phase.selection.monitor, phase.selection.mode) == ("val/loss", "min")
    names = [metric.name for metric in DOMAIN.metrics(cfg)]
    measured = {name: 9.0 for name in names if name not in ("val/loss", "val/ppl_segments")}
    done = PhaseResult("main", 3, 3, 1, 2, 4.0, measured, (), 1.0, 1.0)
    assert DOMAIN.next_phase(cfg, [done]) is None
    summary = DOMAIN.summarize(cfg, [done])
    assert list(summary) == names
    assert summary["val/loss"] == 4.0
    assert summary["val/ppl_segments"] == pytest.approx(math.exp(4.0))
