"""QUEST together with other mechanisms: the parts, what is refused, the names in the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attention import AttentionFactory, MultiHeadAttention, registry
from benchmarks.plan import expand, parse
from benchmarks.store import RunKey, Store
from tests.attention.pairs import D, H, assert_equal, heads

PARTS = ["sink", "gated", "value_residual", "softcap"]
OPTIONS = {"sink": {"start": 0.7}, "softcap": {"cap": 1.5}}


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def test_the_combinations_are_these() -> None:
    assert {name for name in registry.names() if "+" in name} == {f"quest+{p}" for p in PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_a_combination_is_its_part_on_unit_keys_without_the_factor(part: str) -> None:
    """As QUEST is `standard` on them; one set of weights for both."""
    q, k, v = heads()
    x = torch.randn(q.shape[0], q.shape[2], H * D).double()
    outputs = []
    for name, queries, keys in ((f"quest+{part}", q, k), (part, D**0.5 * q, unit(k))):
        torch.manual_seed(0)
        layer = MultiHeadAttention(H * D, H, variant=name, options=OPTIONS.get(part)).double()
        outputs.append(layer.core(queries, keys, v, x=x))
    assert_equal(*outputs, q, k, v)


@pytest.mark.parametrize("part", PARTS)
def test_the_length_of_keys_does_not_matter(part: str) -> None:
    q, k, v = heads()
    layer = MultiHeadAttention(H * D, H, variant=f"quest+{part}").double()
    torch.testing.assert_close(layer.core.logits(q, 7.0 * k, v), layer.core.logits(q, k, v))


@pytest.mark.parametrize("part", PARTS)
def test_options_and_needs_are_those_of_the_part(part: str) -> None:
    combined, alone = registry.entry(f"quest+{part}"), registry.entry(part)
    assert combined.config is alone.config
    assert combined.capabilities == alone.capabilities
    assert combined.learned == alone.learned


@pytest.mark.parametrize(
    "name",
    ["qnorm+sink", "quest+ssmax", "quest+quest", "quest+sink+gated", "sink+quest", "quest+"],
)
def test_every_other_combination_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"'{name}' cannot be combined.*quest\+gated".replace(
            "'" + name, "'" + name.replace("+", r"\+")
        ),
    ):
        AttentionFactory(name)


def test_a_misspelt_combination_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'quest\+sinc'.*did you mean 'quest\+sink'"):
        AttentionFactory("quest+sinc")


def test_names_with_a_plus_go_through_the_engine(tmp_path: Path) -> None:
    """Command line, options, sweeps, the folder of a run and back."""
    asked = ["dataset=JapaneseVowels", "attention=quest+sink,quest+softcap,sink", "seed=0"]
    planned = expand(parse([*asked, "attention.start=0.5"]))
    found = {plan.key.attention: plan.config.attention.options for plan in planned}
    assert found == {"quest+sink": {"start": 0.5}, "quest+softcap": {"cap": 50.0},
                     "sink": {"start": 0.5}}  # fmt: skip
    assert len({plan.key.hash for plan in planned}) == 3
    store = Store(tmp_path)
    for plan in planned:
        store.prepare(plan.key, plan.config.to_dict())
    assert {run.key for run in store.runs()} == {plan.key for plan in planned}
    key = RunKey("d", "s", "quest+sink", "0" * 12, 0)
    assert key.path(tmp_path).parts[-3] == "quest+sink"
    with pytest.raises(ValueError, match=r"'quest\+ssmax' cannot be combined"):
        expand(parse(["dataset=JapaneseVowels", "attention=quest+ssmax", "seed=0"]))
