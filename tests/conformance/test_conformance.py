"""Every registered variant passes every check."""

from __future__ import annotations

from typing import Any

import pytest

from attention import registry
from tests.conformance.checks import CHECKS, Check
from tests.conformance.models import honours

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.names()),
    ("qknorm_hs", {"max_scale": None}),
    ("qknorm_ds", {"init": "unit"}),
    ("qknorm_ds", {"init": 2}),
    ("elliptical", {"causal": True}),
    ("elliptical", {"scaling": "mean"}),
    ("elliptical_quest", {"scaling": "mean", "causal": True}),
    ("logn", {"train_length": 4}),
    ("value_residual", {"first": 0.9}),
]
IDS = [name + "".join(f"-{k}={v}" for k, v in options.items()) for name, options in CASES]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_variant(name: str, options: dict[str, Any], check: Check) -> None:
    check(name, options)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_variants_refuse_only_what_they_must(name: str, options: dict[str, Any]) -> None:
    expected = {"causal", "cross", "padding", "bias", "packed"}
    if name.startswith("elliptical"):
        # An estimate from all tokens shows the future; one from a prefix needs one sequence.
        expected -= {"cross"} if options.get("causal") else {"causal"}
    found = {capability for capability in expected if honours(name, options, capability)}
    assert found == expected
    refused = {"causal", "cross", "padding", "bias", "packed"} - expected
    assert not any(honours(name, options, capability) for capability in refused)
