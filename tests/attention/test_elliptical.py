"""What only the elliptical variants do: the state, the causal estimate, its edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attention import (
    AttentionCore,
    Call,
    LayerState,
    MultiHeadAttention,
    UnsupportedError,
    registry,
)


def layer(index: int, **options: object) -> AttentionCore:
    return AttentionCore(
        2,
        4,
        variant="elliptical",
        options=options,
        layer=index,
        num_layers=3,
        layer_state=True,
    )


def heads(tokens: int = 5) -> Tensor:
    return torch.randn(3, 2, tokens, 4)


def test_layers_must_come_in_order() -> None:
    q = heads()
    state = LayerState()
    with pytest.raises(ValueError, match=r"layer 1 was called after layer None.*LayerState\(\)"):
        layer(1)(q, q, q, state=state)
    layer(0)(q, q, q, state=state)
    with pytest.raises(ValueError, match="layer 0 was called after layer 0"):
        layer(0)(q, q, q, state=state)
    with pytest.raises(ValueError, match="pass the state"):
        layer(1)(q, q, q)
    longer = heads(6)
    with pytest.raises(ValueError, match="consecutive layers"):
        layer(1)(longer, longer, longer, state=state)


def test_a_variant_by_itself_asks_for_the_state() -> None:
    variant = layer(1).variant
    q = heads()
    with pytest.raises(ValueError, match="state"):
        variant.prepare(q, q, q, Call())


@pytest.mark.parametrize("name", ["elliptical", "elliptical_quest"])
def test_a_causal_model_needs_the_causal_estimate(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"'{name}'.*causal=true"):
        MultiHeadAttention(8, 2, variant=name, causal=True)
    with pytest.raises(UnsupportedError, match=rf"'{name}'.*cross-attention"):
        MultiHeadAttention(8, 2, variant=name, options={"causal": True}, cross=True)


@pytest.mark.parametrize("name", ["elliptical", "elliptical_quest"])
def test_the_leak_of_the_future_goes_by_its_name(name: str) -> None:
    """As in the published language models: later values change what an earlier query sees."""
    leaky = {"causal": "leaky"}
    with pytest.raises(UnsupportedError, match=rf"'{name}'.*for causal models"):
        MultiHeadAttention(8, 2, variant=name, options=leaky)
    with pytest.raises(ValueError, match="causal='yes' is unknown; allowed: False, True, 'leaky'"):
        registry.configure(name, {"causal": "yes"})
    q, k, v, before = heads(), heads(), heads(), heads()
    changed = v.clone()
    changed[:, :, -1] += 1.0
    outputs = []
    for values in (v, changed):
        core = AttentionCore(
            2, 4, variant=name, options=leaky, causal=True, layer=1, num_layers=2, layer_state=True
        )
        state = LayerState()
        state.advance(0, before, None)
        outputs.append(core(q, k, values, state=state)[:, :, 1:-1])
    assert not torch.allclose(*outputs)


def test_the_whole_prefix_of_the_last_query_is_the_plain_estimate() -> None:
    q, k, v, before = heads(), heads(), heads(), heads()
    outputs = []
    for causal in (False, True):
        state = LayerState()
        state.advance(0, before, None)
        outputs.append(layer(1, causal=causal)(q, k, v, state=state))
    torch.testing.assert_close(outputs[1][:, :, -1], outputs[0][:, :, -1])


def test_queries_at_the_end_of_the_keys_have_the_prefix_of_their_position() -> None:
    q, k, v, before = heads(), heads(), heads(), heads()
    outputs = []
    for queries in (q, q[:, :, 2:]):
        state = LayerState()
        state.advance(0, before, None)
        outputs.append(layer(1, causal=True)(queries, k, v, state=state)[:, :, -3:])
    torch.testing.assert_close(*outputs)


def test_no_change_of_the_values_gives_uniform_attention() -> None:
    """0 / 0 in the published code."""
    q, k, v = heads().requires_grad_(), heads(), heads()
    state = LayerState()
    state.advance(0, v, None)
    out = layer(1)(q, k, v, state=state)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(v))
    out.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_no_gradient_flows_through_the_metric() -> None:
    q, k = heads(), heads()
    v, before = heads().requires_grad_(), heads().requires_grad_()
    state = LayerState()
    layer(0)(q, k, before, state=state)
    core = layer(1)
    weights = core.probabilities(q, k, v, state=state)
    out = core(q, k, v, state=state).sum()
    grad, grad_before = torch.autograd.grad(out, (v, before), allow_unused=True)
    assert grad_before is None
    torch.testing.assert_close(grad, weights.sum(2)[..., None].expand_as(grad))


def test_other_variants_leave_the_state_alone() -> None:
    for name in registry.names():
        core = MultiHeadAttention(8, 2, variant=name, num_layers=2, layer_state=True).core
        state = LayerState()
        q, x = heads(), torch.randn(3, 5, 8)
        core.probabilities(q, q, q, state=state)
        assert state.layer is None, "explicit probabilities do not advance the state"
        core(q, q, q, state=state, x=x)
        assert (state.layer == 0) == name.startswith("elliptical")
