"""The layer: parity with PyTorch's own, arguments, packed input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import AttentionCore, AttentionFactory, LayerState, MultiHeadAttention, registry


def pair(seed: int = 0, **options: Any) -> tuple[nn.MultiheadAttention, MultiHeadAttention]:
    """PyTorch's layer and ours under one seed."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    torch.manual_seed(seed)
    ours = MultiHeadAttention(16, 4, projection="fused", init="xavier", **options)
    return theirs, ours


def test_xavier_draws_the_numbers_of_pytorch() -> None:
    theirs, ours = pair()
    for mine, other in (
        (ours.qkv_proj.weight, theirs.in_proj_weight),
        (ours.qkv_proj.bias, theirs.in_proj_bias),
        (ours.out_proj.weight, theirs.out_proj.weight),
        (ours.out_proj.bias, theirs.out_proj.bias),
    ):
        assert torch.equal(mine, other)
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(16, 4, kdim=6, vdim=6)
    torch.manual_seed(3)
    ours = MultiHeadAttention(16, 4, key_dim=6, init="xavier")
    assert torch.equal(ours.k_proj.weight, theirs.k_proj_weight)
    assert torch.equal(ours.v_proj.weight, theirs.v_proj_weight)


@pytest.mark.parametrize("case", ["plain", "padding", "causal", "one token", "cross", "bias"])
def test_standard_equals_pytorch(case: str) -> None:
    """A fully padded example included; need_weights=False, where PyTorch gives zeros for it."""
    theirs, ours = pair(causal=case == "causal", cross=case == "cross")
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours.qkv_proj.bias.data.copy_(theirs.in_proj_bias)
    ours.out_proj.bias.data.copy_(theirs.out_proj.bias)
    tokens = 1 if case == "one token" else 9
    x = torch.randn(3, tokens, 16)
    keys = torch.randn(3, 11, 16) if case == "cross" else x
    given: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if case in ("padding", "one token"):
        mask = torch.ones(3, tokens, dtype=torch.bool)
        mask[1, :] = False
        mask[2, 5:] = False
        given["key_padding_mask"] = mask
        options["key_padding_mask"] = ~mask
    if case == "causal":
        options["attn_mask"] = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    if case == "bias":
        given["bias"] = torch.randn(tokens, tokens)
        options["attn_mask"] = given["bias"]
    results = []
    for layer in (ours, theirs):
        leaf, leaf_keys = x.clone().requires_grad_(), keys.clone().requires_grad_()
        source = leaf_keys if case == "cross" else leaf
        if layer is ours:
            out = ours(leaf, source if case == "cross" else None, **given)
        else:
            out = theirs(leaf, source, source, need_weights=False, **options)[0]
        weight = torch.linspace(-1, 1, out.numel()).view_as(out)
        wanted = [leaf, *layer.parameters(), *([leaf_keys] if case == "cross" else [])]
        grads = torch.autograd.grad((out * weight).sum(), wanted)
        shapes = sorted(
            zip([tuple(g.shape) for g in grads], grads, strict=True), key=lambda p: p[0]
        )
        results.append((out, [grad for _, grad in shapes]))
    (out, grads), (expected, expected_grads) = results
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    for grad, wanted_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, wanted_grad, atol=1e-5, rtol=1e-5)


def test_separate_and_fused_are_the_same_layer() -> None:
    fused = MultiHeadAttention(12, 3, projection="fused", variant="quest")
    separate = MultiHeadAttention(12, 3, variant="quest")
    parts = ("q_proj", "k_proj", "v_proj")
    for index, part in enumerate(parts):
        rows = slice(12 * index, 12 * index + 12)
        separate.get_submodule(part).weight.data.copy_(fused.qkv_proj.weight[rows])
        separate.get_submodule(part).bias.data.copy_(fused.qkv_proj.bias[rows])
    separate.out_proj.load_state_dict(fused.out_proj.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(separate(x), fused(x))


def test_linear_init_is_that_of_nn_linear() -> None:
    torch.manual_seed(1)
    layer = MultiHeadAttention(8, 2, projection="fused")
    torch.manual_seed(1)
    expected = nn.Linear(8, 24), nn.Linear(8, 8)
    assert torch.equal(layer.qkv_proj.weight, expected[0].weight)
    assert torch.equal(layer.out_proj.bias, expected[1].bias)


def test_biases_and_widths() -> None:
    layer = MultiHeadAttention(8, 2, head_dim=3, qkv_bias=False, out_bias=False, key_dim=5)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "q_proj.weight": (6, 8),
        "k_proj.weight": (6, 5),
        "v_proj.weight": (6, 5),
        "out_proj.weight": (8, 6),
    }
    assert layer.core.context.cross
    fused = MultiHeadAttention(8, 2, qkv_bias=False, projection="fused", init="xavier")
    assert fused(torch.randn(1, 4, 8)).shape == (1, 4, 8)


def test_masks_add_up() -> None:
    """causal + padding, causal + bias, bias + padding, all: as explicit visibility says."""
    q, k, v = (torch.randn(2, 3, 6, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([[True] * 6, [False, True, False, True, True, False]])
    bias = torch.randn(3, 6, 6, dtype=torch.float64)
    for causal in (False, True):
        core = AttentionCore(3, 4, causal=causal)
        for masks in ({}, {"key_padding_mask": mask}, {"bias": bias},
                      {"key_padding_mask": mask, "bias": bias}):  # fmt: skip
            visible = torch.ones(2, 3, 6, 6, dtype=torch.bool)
            if causal:
                visible = visible.tril()
            if "key_padding_mask" in masks:
                visible = visible & mask[:, None, None]
            scores = q @ k.mT / 2 + masks.get("bias", torch.zeros(()))
            weights = torch.where(visible, scores.exp(), 0.0)
            total = weights.sum(-1, keepdim=True)
            expected = weights / torch.where(total > 0, total, 1.0) @ v
            torch.testing.assert_close(core(q, k, v, **masks), expected)


def test_queries_at_the_end_of_the_keys_see_the_keys_before() -> None:
    """Causal with more keys than queries, as with a memory."""
    core = AttentionCore(2, 4, causal=True)
    q, k, v = (torch.randn(1, 2, 7, 4) for _ in range(3))
    torch.testing.assert_close(core(q[:, :, 4:], k, v), core(q, k, v)[:, :, 4:])
    with pytest.raises(ValueError, match="causal"):
        core(q, k[:, :, :3], v[:, :, :3])


def test_dropout_acts_in_training_alone() -> None:
    layer = MultiHeadAttention(8, 2, attention_dropout=0.5, output_dropout=0.5)
    x = torch.randn(2, 5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    silent = MultiHeadAttention(8, 2, output_dropout=0.5)
    assert (silent(x) == 0).float().mean() > 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 10, "heads": 3}, "head_dim"),
        ({"dim": 8, "heads": 0}, "heads=0"),
        ({"projection": "joint"}, "separate, fused"),
        ({"init": "normal"}, "linear, xavier"),
        ({"projection": "fused", "key_dim": 5}, "key_dim=5"),
        ({"attention_dropout": 1.0}, "dropout"),
        ({"output_dropout": -0.1}, "output_dropout"),
        ({"requests": {"pading"}}, "padding"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"dim": 8, "heads": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(2, 5, 7)}, r"x has shape \(2, 5, 7\), expected \(batch, tokens, 8\)"),
        ({"x": torch.zeros(5, 8)}, "x has shape"),
        ({"context": torch.zeros(2, 5, 8)}, "context"),
        ({"key_padding_mask": torch.ones(2, 4, dtype=torch.bool)}, r"key_padding_mask.*\(2, 5\)"),
        ({"key_padding_mask": torch.ones(2, 5)}, "key_padding_mask.*float32.*bool"),
        ({"bias": torch.zeros(3, 5, 5)}, r"bias.*\(2, 2, 5, 5\)"),
        ({"bias": torch.zeros(5, 5, dtype=torch.bool)}, "bias.*bool"),
        ({"bias": torch.zeros(1, 1, 1, 5, 5)}, "bias"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "x has shape"),
        ({"context_cu_seqlens": torch.tensor([0, 5])}, "context"),
        ({"state": LayerState()}, "layer_state"),
        ({"x": torch.zeros(9, 8), "cu_seqlens": torch.tensor([0, 5])}, "cu_seqlens.*9"),
        ({"x": torch.zeros(9, 8), "cu_seqlens": torch.tensor([1, 9])}, "cu_seqlens.*from 1"),
        ({"x": torch.zeros(9, 8), "cu_seqlens": torch.tensor([0, 6, 4, 9])}, "falls"),
        ({"x": torch.zeros(9, 8), "cu_seqlens": torch.tensor([0.0, 9.0])}, "cu_seqlens.*float"),
        (
            {
                "x": torch.zeros(9, 8),
                "cu_seqlens": torch.tensor([0, 9]),
                "key_padding_mask": torch.ones(1, 9, dtype=torch.bool),
            },
            "key_padding_mask",
        ),
    ],
)
def test_input_that_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    layer = MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match=message):
        layer(**{"x": torch.zeros(2, 5, 8), **arguments})


def test_cross_attention_needs_its_context() -> None:
    layer = MultiHeadAttention(8, 2, key_dim=5)
    with pytest.raises(ValueError, match="context"):
        layer(torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match=r"context has shape .*5\)"):
        layer(torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match="go together"):
        layer(torch.zeros(5, 8), torch.zeros(5, 5), cu_seqlens=torch.tensor([0, 5]))


def test_core_refuses_shapes_that_do_not_fit() -> None:
    core = AttentionCore(2, 4)
    good = torch.zeros(1, 2, 5, 4)
    for q, k, v in (
        (good[0], good, good),
        (torch.zeros(1, 3, 5, 4), good, good),
        (torch.zeros(1, 2, 5, 6), good, good),
        (good, torch.zeros(1, 2, 6, 4), good),
        (good, torch.zeros(3, 2, 5, 4), torch.zeros(3, 2, 5, 4)),
    ):
        with pytest.raises(ValueError, match="head"):
            core(q, k, v)
    with pytest.raises(ValueError, match="query_padding_mask"):
        core(good, good, good, query_padding_mask=torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize("request_", ["padding", "bias", "packed"])
def test_requests_are_binding(request_: str) -> None:
    given: dict[str, dict[str, Tensor]] = {
        "padding": {"key_padding_mask": torch.ones(2, 5, dtype=torch.bool)},
        "bias": {"bias": torch.zeros(5, 5)},
        "packed": {"cu_seqlens": torch.tensor([0, 3, 10])},
    }
    x = torch.zeros(10, 8) if request_ == "packed" else torch.zeros(2, 5, 8)
    MultiHeadAttention(8, 2, requests=[request_])(x, **given[request_])
    others = set(given) - {request_}
    with pytest.raises(ValueError, match=f"{next(iter(given[request_]))}.*'{request_}'"):
        MultiHeadAttention(8, 2, requests=others)(x, **given[request_])


def test_factory_hands_everything_on() -> None:
    factory = AttentionFactory("qknorm_hs", {"max_scale": 50.0})
    assert (factory.variant, factory.options) == ("qknorm_hs", {"max_scale": 50.0})
    layer = factory(8, 2, head_dim=3, causal=True)
    core = factory.core(2, 4, dropout=0.1)
    assert layer.core.name == core.name == "qknorm_hs"
    assert layer.core.variant.config.max_scale == 50.0
    assert layer.core.context.causal
    assert core.dropout == 0.1
    assert repr(factory) == "AttentionFactory('qknorm_hs', {'max_scale': 50.0})"


def test_a_call_can_differ_from_the_layer_in_being_causal() -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    plain, causal = AttentionCore(4, 8), AttentionCore(4, 8, causal=True)
    assert torch.equal(plain(q, k, v, causal=True), causal(q, k, v))
    assert torch.equal(causal(q, k, v, causal=False), plain(q, k, v))
    assert not torch.allclose(plain(q, k, v), causal(q, k, v), atol=1e-3)


def test_a_core_can_be_given_another_variant() -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    core, built = AttentionCore(4, 8), AttentionCore(4, 8, variant="sink")
    core.use("sink", registry.build("sink", core.context))
    core.load_state_dict(built.state_dict())
    assert torch.equal(core(q, k, v), built(q, k, v))
    assert "variant='sink'" in repr(core)
