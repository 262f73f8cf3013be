"""Names, options, refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from attention import AttentionFactory, Context, UnsupportedError, Variant, registry
from attention.variant import Call, Prepared

PAPER = (
    "standard",
    "quest",
    "qnorm",
    "qknorm",
    "qknorm_hs",
    "qknorm_ds",
    "qknorm_ln",
    "elliptical",
    "elliptical_quest",
)


class Plain(Variant):
    capabilities = frozenset({"padding"})

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Prepared:
        return Prepared(q, k, v, 1.0)

    reference = None  # type: ignore[assignment]


@dataclass(frozen=True)
class PlainConfig:
    count: int = 1
    share: float | None = None
    kind: Literal["a", "b"] = "a"
    on: bool = False


@pytest.fixture
def plain() -> Any:
    registry.register("plain", PlainConfig, summary="s", source="x")(Plain)
    yield "plain"
    registry.unregister("plain")


def test_names_stand_in_the_order_of_the_paper_then_of_the_alphabet(plain: str) -> None:
    names = registry.names()
    assert names[: len(PAPER)] == PAPER
    assert "plain" in names
    assert list(names[len(PAPER) :]) == sorted(names[len(PAPER) :])


@pytest.mark.parametrize(("given", "near"), [("quset", "quest"), ("qknorm-hs", "qknorm_hs")])
def test_a_misspelt_name_is_answered_with_the_nearest(given: str, near: str) -> None:
    for call in (registry.config_of, registry.entry, AttentionFactory):
        with pytest.raises(ValueError, match=rf"{given}.*did you mean '{near}'.*standard, quest"):
            call(given)


def test_entry_says_what_a_table_shows() -> None:
    found = registry.entry("qknorm_ds")
    assert found.name == "qknorm_ds"
    assert found.learned == ("query_scale", "key_scale")
    assert registry.entry("quest").learned == ()
    assert registry.entry("elliptical").capabilities >= {"causal", "needs_state"}
    assert all(registry.entry(name).summary and registry.entry(name).source for name in PAPER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initt": 1.0}, r"'initt'.*did you mean 'init'.*allowed: init"),
        ({"init": "ones"}, r"init='ones'.*'fourth_root', 'unit'"),
        ({"init": True}, r"init=True.*float \| int \| str.*bool"),
        ({"init": None}, "init=None"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.build("qknorm_ds", Context(2, 4), options)
    with pytest.raises(ValueError, match=message):
        AttentionFactory("qknorm_ds", options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qknorm_hs", {"max_scale": 0.0}),
        ("qknorm_hs", {"max_scale": float("nan")}),
        ("elliptical", {"scaling": "median"}),
        ("elliptical", {"causal": 1}),
        ("logn", {"train_length": 1}),
        ("ssmax", {"start": float("inf")}),
        ("value_residual", {"first": 1.5}),
        ("plain", {"count": 1.5}),
        ("plain", {"count": True}),
        ("plain", {"share": "x"}),
        ("plain", {"kind": "c"}),
        ("plain", {"on": "yes"}),
    ],
)
def test_values_of_the_wrong_kind_are_refused(
    plain: str, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        registry.configure(name, options)


def test_good_options_are_taken(plain: str) -> None:
    config = registry.configure("plain", {"count": 2, "share": 1, "kind": "b", "on": True})
    assert config == PlainConfig(2, 1, "b", True)
    assert registry.configure("plain", {"share": None}) == PlainConfig()


@pytest.mark.parametrize(
    "context",
    [{"causal": True}, {"cross": True}, {"requests": frozenset({"bias", "padding"})}],
)
def test_what_a_variant_lacks_is_refused_at_build(plain: str, context: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"'plain'.*(causal|cross|bias)"):
        registry.build("plain", Context(2, 4, **context))
    registry.build("plain", Context(2, 4, requests=frozenset({"padding"})))


def test_elliptical_needs_the_state_of_the_model() -> None:
    with pytest.raises(UnsupportedError, match="layer_state=True"):
        registry.build("elliptical", Context(2, 4, num_layers=2))
    registry.build("elliptical", Context(2, 4))


def test_gates_need_the_tokens_of_the_queries() -> None:
    with pytest.raises(UnsupportedError, match=r"'gated'.*MultiHeadAttention.*dim"):
        registry.build("gated", Context(2, 4))
    core = AttentionFactory("gated").core(2, 4, dim=6)
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="x: attention='gated'"):
        core(q, q, q)
    with pytest.raises(ValueError, match=r"x has shape.*\(1, 3, 6\)"):
        core(q, q, q, x=torch.randn(1, 3, 5))
    with pytest.raises(ValueError, match="x: declare"):
        AttentionFactory().core(2, 4)(q, q, q, x=torch.randn(1, 3, 6))


@pytest.mark.parametrize(
    "arguments",
    [{"heads": 0}, {"dim": 0}, {"layer": 1}, {"layer": -1}, {"requests": frozenset({"pading"})}],
)
def test_a_context_must_make_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Context(**{"heads": 2, "head_dim": 4, **arguments})


def test_random_initial_values_leave_the_random_stream_alone() -> None:
    class Drawing(Plain):
        def __init__(self, config: PlainConfig, context: Context) -> None:
            super().__init__(config, context)
            self.weight = nn.Parameter(torch.randn(4))

    registry.register("drawing", PlainConfig, summary="s", source="x")(Drawing)
    try:
        torch.manual_seed(0)
        expected = torch.stack([torch.randn(4) for _ in range(3)])
        torch.manual_seed(0)
        found, weights = [], []
        for _ in range(3):
            weights.append(registry.build("drawing", Context(2, 4)).weight)
            found.append(torch.randn(4))
    finally:
        registry.unregister("drawing")
    assert torch.equal(torch.stack(found), expected)
    assert len(set(torch.cat([*weights, *found]).tolist())) == 24, "differ from layer to layer"


@pytest.mark.parametrize("name", ["weight", "bias", "scale", "gain", "norm", "gate"])
def test_parameters_may_have_the_names_that_they_usually_have(name: str) -> None:
    assert not hasattr(Variant, name)


def test_a_name_is_given_once_and_options_have_defaults() -> None:
    with pytest.raises(ValueError, match="already"):
        registry.register("quest", PlainConfig, summary="", source="")(Plain)

    @dataclass
    class Bare:
        size: int
        items: list[int] = field(default_factory=list)

    with pytest.raises(ValueError, match="default: size"):
        registry.register("bare", Bare, summary="", source="")(Plain)
    with pytest.raises(ValueError, match="dataclass"):
        registry.register("bare", dict, summary="", source="")(Plain)
    with pytest.raises(ValueError, match="unknown"):
        registry.unregister("bare")


def test_a_whole_number_as_init_is_taken() -> None:
    """By the engine too, which builds the options through OmegaConf."""
    schema = OmegaConf.structured(registry.config_of("qknorm_ds"))
    found = OmegaConf.to_object(OmegaConf.merge(schema, {"init": 1}))
    assert found == registry.configure("qknorm_ds", {"init": 1})
    assert isinstance(found.init, float)


def test_a_scale_does_not_start_above_its_bound() -> None:
    core = AttentionFactory("qknorm_hs", {"max_scale": 5.0}).core(2, 4)
    scale = core.variant.log_scale
    torch.testing.assert_close(scale.exp(), torch.full_like(scale, 5.0))
    core(*torch.randn(3, 1, 2, 3, 4)).square().sum().backward()
    assert scale.grad.ne(0).all()
