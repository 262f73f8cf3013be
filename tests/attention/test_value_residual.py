"""What only the value residual does: the values of the first layer, handed on with gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attention import AttentionCore, Call, LayerState
from tests.attention.pairs import D, H, assert_equal, core, heads


def layer(index: int, **options: float) -> AttentionCore:
    return core("value_residual", options=options, layer=index, num_layers=3, layer_state=True)


def run(first: float) -> tuple[Tensor, list[Tensor]]:
    """Three layers with values of their own; the output of the last."""
    q, k, _ = heads()
    values = [heads(seed=seed)[2] for seed in range(3)]
    state = LayerState()
    for index, v in enumerate(values):
        out = layer(index, first=first)(q, k, v, state=state)
    return out, [q, k, *values]


def test_without_its_part_of_the_first_layer_it_is_standard() -> None:
    out, leaves = run(0.0)
    q, k, _, _, last = leaves
    assert_equal(out, core("standard")(q, k, last), q, k, last)


def test_all_of_the_first_layer_and_nothing_of_the_last() -> None:
    out, leaves = run(1.0)
    q, k, first, _, _ = leaves
    assert_equal(out, core("standard")(q, k, first), q, k, first)


def test_the_first_layer_gets_gradient_from_the_last_and_the_second_none() -> None:
    out, (_, _, first, second, last) = run(0.25)
    grads = torch.autograd.grad(out.sum(), (first, second, last), allow_unused=True)
    assert grads[1] is None
    assert grads[0] is not None
    torch.testing.assert_close(3.0 * grads[0], grads[2])


def test_the_first_layer_is_standard() -> None:
    q, k, v = heads()
    out = layer(0)(q, k, v, state=LayerState())
    assert_equal(out, core("standard")(q, k, v), q, k, v)


def test_the_state_is_refused_out_of_order() -> None:
    q, k, v = heads()
    with pytest.raises(ValueError, match=r"layer 1.*layer 0 did not leave.*LayerState\(\)"):
        layer(1)(q, k, v, state=LayerState())
    state = LayerState()
    layer(0)(q, k, v, state=state)
    with pytest.raises(ValueError, match="layer 0 left its values already"):
        layer(0)(q, k, v, state=state)
    longer = heads(tokens=9)
    with pytest.raises(ValueError, match=r"\(2, 3, 9, 8\).*those of layer 0 \(2, 3, 6, 8\)"):
        layer(1)(*longer, state=state)
    with pytest.raises(ValueError, match="pass the state"):
        layer(1).variant.prepare(q, k, v, Call())


def test_a_model_that_hands_nothing_on_is_refused_when_it_is_built() -> None:
    with pytest.raises(ValueError, match=r"'value_residual' needs the values.*layer_state=True"):
        AttentionCore(H, D, variant="value_residual", num_layers=2)


def test_explicit_weights_do_not_advance_the_state() -> None:
    q, k, v = heads()
    state = LayerState()
    layer(0).probabilities(q, k, v, state=state)
    assert state.first is None
