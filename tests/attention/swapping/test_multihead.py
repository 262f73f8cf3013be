"""`nn.MultiheadAttention` with a variant inside: masks, weights, sinks, and the fast path."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attention
import attention.tags
from attention import LayerState, MultiHeadAttention, UnsupportedError, registry, swap
from attention.variant import NEEDS_STATE
from tests.attention.swapping.models import (
    HEADS,
    TOKENS,
    WIDTH,
    bare,
    decoder,
    encoder,
    padding,
    shake,
    tokens,
)

CLOSE = {"atol": 1e-6, "rtol": 1e-6}


def layer(**kwargs: Any) -> nn.MultiheadAttention:
    made = shake(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **kwargs))
    assert isinstance(made, nn.MultiheadAttention)
    return made


def order(size: int = TOKENS) -> Tensor:
    """True where a key comes later than the query."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def as_float(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def per_head() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(3 * HEADS, TOKENS, TOKENS, generator=generator) > 0.6
    mask[..., 0] = False  # of a query that sees nothing, torch itself makes NaN or zeros
    return mask


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "padding": lambda: {"key_padding_mask": padding()},
    "padding, float": lambda: {"key_padding_mask": as_float(padding())},
    "padding with finite values": lambda: {
        "key_padding_mask": as_float(padding()) + torch.linspace(0, 1, TOKENS)
    },
    "causal": lambda: {"attn_mask": order()},
    "causal, float": lambda: {"attn_mask": as_float(order())},
    "causal by the hint": lambda: {"attn_mask": order(), "is_causal": True},
    "causal and padding": lambda: {
        "attn_mask": as_float(order()), "key_padding_mask": as_float(padding())
    },
    "bias": lambda: {"attn_mask": torch.linspace(-1, 1, TOKENS * TOKENS).view(TOKENS, TOKENS)},
    "a mask for each head": lambda: {"attn_mask": per_head()},
    "a float mask for each head, padding": lambda: {
        "attn_mask": as_float(per_head()), "key_padding_mask": as_float(padding())
    },
}  # fmt: skip


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_masks_and_weights_mean_what_they_did(
    masks: str, need_weights: bool, average: bool
) -> None:
    module, x = layer(), tokens()
    arguments = {
        "need_weights": need_weights, "average_attn_weights": average, **MASKS[masks]()
    }  # fmt: skip
    expected = module(x, x, x, **arguments)
    swap(module, "standard")
    out = module(x, x, x, **arguments)
    torch.testing.assert_close(out[0], expected[0], **CLOSE)
    assert (out[1] is None) == (expected[1] is None)
    if need_weights:
        torch.testing.assert_close(out[1], expected[1], **CLOSE)


@pytest.mark.parametrize("masks", ["padding", "padding, float", "causal", "causal by the hint"])
def test_hidden_keys_do_not_matter_to_quest(masks: str) -> None:
    module, x = layer(), tokens()
    swap(module, "quest")
    arguments = MASKS[masks]()
    out = module(x, x, x, **arguments)[0]
    moved = x.clone()
    moved[1, 3:] += 1.0  # padding of the second sequence, and later than the first three tokens
    again = module(moved, moved, moved, **arguments)[0]
    torch.testing.assert_close(again[1, :3], out[1, :3])
    assert not torch.allclose(module(moved, moved, moved)[0][1, :3], out[1, :3], atol=1e-3)


def test_one_sequence_without_a_batch() -> None:
    module, x = layer(), tokens()[0]
    hidden = torch.tensor([False] * 4 + [True])
    expected = module(x, x, x, key_padding_mask=hidden)
    swap(module, "standard")
    out = module(x, x, x, key_padding_mask=hidden)
    torch.testing.assert_close(out, expected, **CLOSE)


def test_cross_attention_with_fewer_keys_than_queries() -> None:
    module, x, context = layer(), tokens(), tokens(2, seed=2)
    hidden = torch.tensor([[False, True]] * 3)
    expected = module(x, context, context, key_padding_mask=hidden)
    swap(module, "standard")
    torch.testing.assert_close(module(x, context, context, key_padding_mask=hidden), expected)


@pytest.mark.parametrize("name", registry.names())
def test_every_variant_equals_the_layer_of_this_package(name: str) -> None:
    """The same weights in two layers one behind the other, one way and the other."""
    stateful = NEEDS_STATE in registry.entry(name).capabilities
    theirs = nn.ModuleList([layer(), layer()])
    swap(theirs, name)
    ours = [
        MultiHeadAttention(
            WIDTH, HEADS, variant=name, projection="fused", layer=index, num_layers=2,
            layer_state=stateful,
        ).eval()
        for index in range(2)
    ]  # fmt: skip
    renamed = {"in_proj_weight": "qkv_proj.weight", "in_proj_bias": "qkv_proj.bias"}
    for own, other in zip(ours, theirs, strict=True):
        state = {renamed.get(key, key): tensor for key, tensor in other.state_dict().items()}
        own.load_state_dict(state)
    x = y = tokens()
    state = LayerState() if stateful else None
    for own, other in zip(ours, theirs, strict=True):
        x = own(x, key_padding_mask=~padding(), state=state)
        y = other(y, y, y, key_padding_mask=padding())[0]
    torch.testing.assert_close(y, x, **CLOSE)


def test_the_fast_path_of_the_encoder_does_not_go_around_the_variant() -> None:
    model, run = encoder()
    with torch.no_grad():
        original = run()
        assert (original[padding()] == 0).all(), "the fast path is taken"
        swap(model, "quest")
        fast = run()
    model.train()
    slow = run()
    real = ~padding()
    torch.testing.assert_close(fast[real], slow[real], **CLOSE)
    assert not torch.allclose(fast[real], original[real], atol=1e-3)
    assert (fast[padding()] == 0).all(), "padded positions stay zero where they were"


def test_a_layer_alone_has_no_fast_path_either() -> None:
    model = encoder()[0].layers[0]
    swap(model, "quest")
    with torch.no_grad():
        fast = model(tokens())
    torch.testing.assert_close(fast, model.train()(tokens()), **CLOSE)


def test_a_swapped_layer_can_be_stacked_into_a_new_encoder() -> None:
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    swap(block, "quest")
    model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        fast = model(tokens(), src_key_padding_mask=padding())
    slow = model.train()(tokens(), src_key_padding_mask=padding())
    torch.testing.assert_close(fast, slow, **CLOSE)


@pytest.mark.parametrize("kind", [{"add_bias_kv": True}, {"add_zero_attn": True}, {
    "add_bias_kv": True, "add_zero_attn": True}])  # fmt: skip
def test_sinks_of_the_layer_are_refused_kept_or_replaced(kind: dict[str, bool]) -> None:
    module, x = layer(**kind), tokens()
    masks = {"key_padding_mask": padding(), "attn_mask": order(), "need_weights": False}
    expected = module(x, x, x, **masks)[0]
    with pytest.raises(UnsupportedError, match=r"sink.*own='keep'.*own='replace'"):
        swap(module, "standard")
    report = swap(module, "standard", own="keep")
    torch.testing.assert_close(module(x, x, x, **masks)[0], expected, **CLOSE)
    assert "kept under the variant: a sink" in str(report)
    report.undo()
    swap(module, "standard", own="replace")
    plain = layer()
    plain.load_state_dict(module.state_dict(), strict=False)
    torch.testing.assert_close(module(x, x, x, **masks)[0], plain(x, x, x, **masks)[0], **CLOSE)


def test_dropout_drops_weights_in_training_alone() -> None:
    module, x = layer(dropout=0.5), tokens()
    swap(module, "standard")
    torch.testing.assert_close(module(x, x, x)[0], module(x, x, x)[0])
    module.train()
    assert not torch.allclose(module(x, x, x)[0], module(x, x, x)[0])


def test_a_pickled_module_is_the_same() -> None:
    module, x = layer(), tokens()
    swap(module, "qknorm_hs")
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module)
    torch.testing.assert_close(again(x, x, x), module(x, x, x))


def test_parameters_are_tagged() -> None:
    module = layer()
    swap(module, "qknorm_hs")
    tags = attention.tags.tag_of(module)
    assert tags["in_proj_weight"] == "qkv"
    assert tags["out_proj.bias"] == "ov"
    assert tags["core.variant.log_scale"] == "scale"
    assert set(tags) == dict(module.named_parameters()).keys()


@pytest.mark.parametrize("name", ["qk_clip", "sigma_reparam"])
def test_variants_that_act_after_a_step_do(name: str) -> None:
    module, x = layer(), 10.0 * tokens()
    options = {"threshold": 0.01} if name == "qk_clip" else None
    report = swap(module, name, options=options)
    assert "attention.after_step(model)" in str(report)
    module.train()
    module(x, x, x)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    with torch.no_grad():
        module.in_proj_weight.add_(0.5 * torch.randn_like(module.in_proj_weight))
    moved = module.state_dict()["in_proj_weight"].clone()
    attention.after_step(module)
    after = module.state_dict()
    if name == "qk_clip":
        assert not torch.equal(after["in_proj_weight"][: 2 * WIDTH], moved[: 2 * WIDTH])
        assert torch.equal(after["in_proj_weight"][2 * WIDTH :], moved[2 * WIDTH :])
    else:
        key = "core.variant.direction_q"
        assert not torch.equal(after[key], before[key])


def test_sigma_reparam_starts_as_standard() -> None:
    model, run = encoder()
    expected = run()
    swap(model, "sigma_reparam")
    torch.testing.assert_close(run(), expected, atol=1e-5, rtol=1e-5)


def test_layers_that_look_at_others_need_others() -> None:
    with pytest.raises(UnsupportedError, match="stands alone"):
        swap(layer(), "value_residual")


def test_a_metric_of_all_tokens_is_refused_in_a_decoder() -> None:
    model, run = decoder()
    expected = run()
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn: it belongs to a decoder"):
        swap(model, "elliptical")
    assert torch.equal(run(), expected)
    with pytest.raises(UnsupportedError, match="cross-attention"):
        swap(model, "elliptical", options={"causal": True})
    swap(model, "elliptical", options={"causal": True}, where=lambda name, _: "self_attn" in name)
    assert not torch.allclose(run(), expected, atol=1e-3)


def test_a_metric_of_all_tokens_is_refused_under_a_mask() -> None:
    model = encoder()[0]
    swap(model, "elliptical")
    with pytest.raises(UnsupportedError, match="attn_mask may hide keys that come later"):
        model(tokens(), mask=order())


def test_state_of_another_sequence_is_refused() -> None:
    layers = nn.ModuleList([layer(), layer()])
    swap(layers, "value_residual")
    with pytest.raises(UnsupportedError, match="another sequence"):
        layers[0](tokens(), tokens(3), tokens(3))


def test_a_layer_called_out_of_order_is_refused() -> None:
    layers, x = nn.ModuleList([layer(), layer()]), tokens()
    swap(layers, "value_residual")
    layers[0](x, x, x)
    layers[1](x, x, x)
    with pytest.raises(ValueError, match="state"):
        layers[1](x, x, x)


def test_a_pass_that_broke_off_leaves_nothing_for_the_next() -> None:
    layers, x = nn.ModuleList([layer(), layer()]), tokens()
    swap(layers, "value_residual")
    expected = layers[1](layers[0](x, x, x)[0], x, x)[0]
    layers[0](x + 1.0, x, x)
    assert torch.equal(layers[1](layers[0](x, x, x)[0], x, x)[0], expected)


def test_the_hint_needs_its_mask() -> None:
    module = bare()[0]
    swap(module, "standard")
    with pytest.raises(ValueError, match="pass attn_mask too"):
        module(tokens(), tokens(), tokens(), is_causal=True)
