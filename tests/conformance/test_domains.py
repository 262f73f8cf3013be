"""What every domain must hold, with every variant, on its made-up data."""

from __future__ import annotations

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
from benchmarks.store import Store
from domains import registry as domains
from domains.base import BenchmarkModule

ROOT = Path(__file__).resolve().parents[2]
CASES = [(domain, variant) for domain in domains.names() for variant in registry.names()]


def planned(domain: str, variant: str) -> Planned:
    asked = ["dataset=default", "seed=0", "synthetic=true", "budget=smoke", "telemetry.every=1"]
    (found,) = expand(parse([f"domain={domain}", f"attention={variant}", *asked]))
    return found


@cache
def built(domain: str, variant: str) -> tuple[BenchmarkModule, Any]:
    """Fresh model and first training batch."""
    cfg = planned(domain, variant).config
    contract = domains.load(domain)
    phase = contract.next_phase(cfg, [])
    assert phase is not None
    data, module = build(contract, cfg, phase)
    return module, next(iter(data.train_dataloader()))


@pytest.mark.parametrize(("domain", "variant"), CASES)
def test_a_smoke_run_ends_with_a_result(domain: str, variant: str, tmp_path: Path) -> None:
    plan = planned(domain, variant)
    run = Store(tmp_path).prepare(plan.key, plan.config.to_dict())
    execute(run, plan.config.to_dict(), lambda event: None, lambda: None)
    run.set_status("running")
    run.set_status("done")
    result = run.result()
    assert result is not None
    assert result["primary_metric"]["name"] in result["metrics"]
    assert all(math.isfinite(value) for value in result["metrics"].values())
    assert result["telemetry"]["key_norm_mean"] > 0.0


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
    """Tensors of a batch as plain numbers, whatever holds them."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: flat(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [flat(value) for value in batch]
    if isinstance(batch, str | int | float | None):
        return batch
    # A batch of graphs keeps its tensors behind its attributes.
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
def test_a_domain_is_documented(domain: str) -> None:
    text = (ROOT / "domains" / domain / "README.md").read_text(encoding="utf-8")
    for heading in ("## Deviations", "## Cost", "## Data", "## Published numbers"):
        assert heading in text, heading
    assert domain in (ROOT / "README.md").read_text(encoding="utf-8")
