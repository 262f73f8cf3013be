"""What every domain must hold, with every variant, on its made-up data."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from attention import registry
from attention.tags import tag_of
from benchmarks.plan import Planned, expand, parse
from benchmarks.runner import build, execute
from benchmarks.store import RunEnded, Store
from domains import registry as domains
from domains.base import BenchmarkModule

ROOT = Path(__file__).resolve().parents[2]
CASES = [(domain, variant) for domain in domains.names() for variant in registry.names()]
NEEDED = {
    ("language", "elliptical"): "attention.causal=true",
    ("language", "elliptical_quest"): "attention.causal=true",
}
"""Options without which a variant cannot serve a domain."""

SMALLER = {"pointcloud": ("recipe=narrow", "protocol=tta")}
"""For domains whose default model is too large to be built for every variant."""


def planned(domain: str, variant: str, *options: str) -> Planned:
    asked = ["dataset=default", "seed=0", "synthetic=true", "budget=smoke"]
    asked += ["telemetry=sampled", "telemetry.every=1", *SMALLER.get(domain, ())]
    (found,) = expand(parse([f"domain={domain}", f"attention={variant}", *asked, *options]))
    return found


def served(domain: str, variant: str) -> Planned:
    """A run with the options that the domain needs."""
    needed = NEEDED.get((domain, variant))
    return planned(domain, variant, *([needed] if needed else []))


@cache
def built(domain: str, variant: str) -> tuple[BenchmarkModule, Any]:
    """Fresh model and first training batch."""
    cfg = served(domain, variant).config
    contract = domains.load(domain)
    phase = contract.next_phase(cfg, [])
    assert phase is not None
    data, module = build(contract, cfg, phase)
    return module, next(iter(data.train_dataloader()))


@pytest.mark.parametrize(("domain", "variant"), CASES)
def test_a_smoke_run_ends_with_a_result(domain: str, variant: str, tmp_path: Path) -> None:
    plan = served(domain, variant)
    run = Store(tmp_path).prepare(plan.key, plan.config.to_dict())
    execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
    run.set_status("running")
    run.set_status("done")
    result = run.result()
    assert result is not None
    assert result["primary_metric"]["name"] in result["metrics"]
    assert all(math.isfinite(value) for value in result["metrics"].values())
    assert result["telemetry"]["key_norm_mean"] > 0.0


@pytest.mark.parametrize(("domain", "variant"), NEEDED)
def test_a_variant_that_cannot_serve_a_domain_says_what_it_needs(
    domain: str, variant: str, tmp_path: Path
) -> None:
    plan = planned(domain, variant)
    run = Store(tmp_path).prepare(plan.key, plan.config.to_dict())
    with pytest.raises(RunEnded) as ended:
        execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
    assert ended.value.state == "skipped"
    assert NEEDED[(domain, variant)].removeprefix("attention.") in ended.value.reason


@pytest.mark.parametrize(("domain", "variant"), CASES)
def test_exchanging_the_variant_changes_its_own_parameters_only(domain: str, variant: str) -> None:
    """All others are there under the same names, with the same initial values."""
    standard, _ = built(domain, "standard")
    module, _ = built(domain, variant)
    own = dict(module.net.named_parameters())
    for name, parameter in standard.net.named_parameters():
        assert torch.equal(parameter, own.pop(name)), name
    tags = tag_of(module.net)
    assert all(name in tags for name in own), "what is left must belong to the attention"


@pytest.mark.parametrize(("domain", "variant"), CASES)
def test_every_variant_sees_the_same_batches(domain: str, variant: str) -> None:
    assert flat(built(domain, variant)[1]) == flat(built(domain, "standard")[1])


def flat(batch: Any) -> Any:
    """Tensors of a batch as bytes, where NaN equals itself, whatever holds them."""
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.shape, batch.numpy().tobytes()
    if isinstance(batch, dict):
        return {key: flat(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [flat(value) for value in batch]
    if isinstance(batch, str | int | float | None):
        return batch
    return flat(batch.to_dict() if hasattr(batch, "to_dict") else vars(batch))


@pytest.mark.parametrize("domain", domains.names())
def test_learned_scales_take_no_weight_decay(domain: str) -> None:
    from domains.base import build_optimizer
    from domains.contract import OptimizerConfig

    module, _ = built(domain, "qknorm_hs")
    optimizer = build_optimizer(module.net, OptimizerConfig(weight_decay=0.1))
    tags = tag_of(module.net)
    scales = {id(p) for name, p in module.net.named_parameters() if tags.get(name) == "scale"}
    assert scales
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.0 if id(parameter) in scales else 0.1)


@pytest.mark.parametrize("domain", domains.names())
def test_queries_and_keys_get_their_own_rate_or_it_is_refused(domain: str) -> None:
    """Refused where queries, keys and values are one weight, and when the model is built."""
    cfg = planned(domain, "standard").config
    recipe = dataclasses.replace(cfg.recipe, qk_lr_ratio=10.0)
    changed = dataclasses.replace(cfg, recipe=recipe)
    contract = domains.load(domain)
    phase = contract.next_phase(changed, [])
    assert phase is not None
    if "qkv" in tag_of(built(domain, "standard")[0].net).values():
        with pytest.raises(ValueError, match=r"recipe\.qk_lr_ratio"):
            build(contract, changed, phase)
        return
    from domains.base import parameter_rates

    _, module = build(contract, changed, phase)
    rates = parameter_rates(module.net, recipe.optimizer, **recipe.qk_options)
    tags = tag_of(module.net)
    assert "qk" in tags.values()
    for name, rate in rates.items():
        factor = 10.0 if tags.get(name) in ("qk", "scale") else 1.0
        assert rate.lr == pytest.approx(factor * recipe.optimizer.lr), name


@pytest.mark.parametrize("domain", domains.names())
def test_a_domain_is_documented(domain: str) -> None:
    text = (ROOT / "domains" / domain / "README.md").read_text(encoding="utf-8")
    for heading in ("## Deviations", "## Cost", "## Data", "## Published numbers"):
        assert heading in text, heading
    assert domain in (ROOT / "README.md").read_text(encoding="utf-8")
