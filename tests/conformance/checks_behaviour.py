"""Checks of what a layer does with tokens, masks, weights and random numbers."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attention import (
    AttentionCore,
    LayerState,
    MultiHeadAttention,
    UnsupportedError,
    kernels,
)
from attention.tags import TAGS, tag_of
from tests.conformance.listing import Options, check
from tests.conformance.models import (
    BATCH,
    DIM,
    HEADS,
    SHAPES,
    TOKENS,
    Stack,
    gradients,
    honours,
    own_parameters,
    padding,
    stack,
    tokens,
)
from tests.tolerances import assert_gradients, assert_values


@check
def padding_changes_nothing(name: str, options: Options) -> None:
    """Outputs and gradients of real tokens are those of the sequence alone."""
    if not honours(name, options, "padding"):
        return
    model = stack(name, options)
    x = tokens().requires_grad_()
    mask = padding()
    out = model(x, key_padding_mask=mask)
    grads = gradients(model, out * mask[..., None], x)
    garbage = torch.where(mask[..., None], x, 1e3 * torch.randn_like(x))
    assert_values(model(garbage, key_padding_mask=mask)[mask], out[mask], "content of the padding")
    assert_values(grads[0][~mask], torch.zeros_like(grads[0][~mask]), "gradient of the padding")
    total = [torch.zeros_like(grad) for grad in grads]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=out.dtype)
    for example, length in enumerate(mask.sum(1).tolist()):
        alone = x[example : example + 1, :length].detach().requires_grad_()
        out_alone = model(alone)
        assert_values(out[example, :length], out_alone[0], "padded and alone")
        loss = (out_alone[0] * weight[example, :length]).sum()
        parts = torch.autograd.grad(loss, [alone, *model.parameters()], allow_unused=True)
        total[0][example, :length] = parts[0][0]
        for sum_, part in zip(total[1:], parts[1:], strict=True):
            if part is not None:
                sum_ += part
    for grad, expected in zip(grads, total, strict=True):
        assert_gradients(grad, expected, "gradient, padded and alone")


@check
def order_of_tokens_does_not_matter(name: str, options: Options) -> None:
    """Permuted input gives permuted output; variants that order their tokens are left out."""
    model = stack(name, options)
    if getattr(model.layers[0].core.variant.config, "causal", False):
        return
    x = tokens()
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(3))
    assert_values(model(x[:, order]), model(x)[:, order])


@check
def the_future_is_invisible(name: str, options: Options) -> None:
    """In a causal model a later token changes no earlier output and gets no gradient from it."""
    if not honours(name, options, "causal"):
        return
    model = stack(name, options, causal=True)
    x = tokens().requires_grad_()
    out = model(x)
    changed = x.detach().clone()
    changed[:, 4:] = 5.0
    assert_values(model(changed)[:, :4], out[:, :4])
    (grad,) = torch.autograd.grad(out[:, :4].sum(), x)
    assert (grad[:, 4:] == 0).all()
    assert (grad[:, 0] != 0).any()


@check
def examples_do_not_mix(name: str, options: Options) -> None:
    model = stack(name, options)
    x = tokens()
    for example in range(BATCH):
        assert_values(model(x)[example], model(x[example : example + 1])[0])


@check
def any_length_works(name: str, options: Options) -> None:
    """One token attends to itself; odd lengths, one head, and wide heads give finite numbers.

    A width of the head that the variant cannot have is refused by name.
    """
    layer = MultiHeadAttention(DIM, HEADS, variant=name, options=options).double()
    x = tokens(length=1)
    out, variant = layer(x), layer.core.variant
    if variant.averages_values:
        for role in ("v", "out"):
            weight, bias = layer.projections()[role]
            x = functional.linear(x, variant.reparametrize(role, weight), bias)
        assert_values(out, x, "one token")
    assert out.isfinite().all()
    for heads, head_dim, length in ((1, 12, 13), (3, 5, 31), (2, 1, 2)):
        try:
            layer = MultiHeadAttention(DIM, heads, head_dim=head_dim, variant=name, options=options)
        except UnsupportedError as error:
            if f"head_dim={head_dim}" not in str(error):
                raise
            continue
        x = tokens(length=length).float().requires_grad_()
        out = layer(x)
        assert out.shape == x.shape
        assert all(grad.isfinite().all() for grad in gradients(layer, out, x))


@check
def a_row_without_keys_is_zero(name: str, options: Options) -> None:
    """On every path and in both modes, before the output projection; gradients stay finite."""
    if not honours(name, options, "padding"):
        return
    mask = padding((7, 0, 3))
    outputs: list[Tensor] = []
    for dropout in (0.0, 0.5):
        model = stack(name, options, attention_dropout=dropout)
        for layer in model.layers:
            layer.core.register_forward_hook(lambda *args: outputs.append(args[2]))
        for mode, limit in ((True, 2**18), (True, 0), (False, 2**18)):
            model.train(mode)
            x = tokens().requires_grad_()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "STORED_SCORES_LIMIT", limit)
                out = model(x, key_padding_mask=mask)
            assert all(grad.isfinite().all() for grad in gradients(model, out, x))
    assert len(outputs) == 12
    assert all((out[1] == 0).all() and (out[0] != 0).any() for out in outputs)
    layer = model.layers[0]
    weights = layer.probabilities(tokens(), key_padding_mask=mask, state=LayerState())
    assert (weights[1] == 0).all()
    assert (weights[2, ..., 3:] == 0).all()


@check
def zero_keys_and_queries_are_harmless(name: str, options: Options) -> None:
    """Exactly zero q, k or v, as zero padding without biases gives: no NaN, no huge gradient."""
    layer = MultiHeadAttention(DIM, HEADS, variant=name, options=options, qkv_bias=False)
    for zero in ("q_proj", "k_proj", "v_proj"):
        layer = copy.deepcopy(layer)
        nn.init.zeros_(layer.get_submodule(zero).weight)
        x = tokens().float().requires_grad_()
        grads = gradients(layer, layer(x), x)
        assert all(grad.isfinite().all() and grad.abs().max() < 1e6 for grad in grads), zero
    x = tokens().float()
    x[:, 2] = 0.0
    x.requires_grad_()
    grads = gradients(layer, layer(x), x)
    assert all(grad.isfinite().all() and grad.abs().max() < 1e6 for grad in grads)


@check
def packed_equals_padded(name: str, options: Options) -> None:
    """Values and gradients; empty and equally long sequences, too."""
    if not honours(name, options, "packed"):
        return
    model = stack(name, options, requests={"packed", "padding"})
    for lengths in ((7, 4, 1), (3, 0, 7), (5, 5, 5)):
        mask = padding(lengths)
        bounds = torch.tensor([0, *lengths]).cumsum(0).int()
        x = tokens()[mask].requires_grad_()
        out = model(x, cu_seqlens=bounds)
        padded = torch.zeros(BATCH, TOKENS, DIM, dtype=x.dtype).masked_scatter(mask[..., None], x)
        dense = model(padded, key_padding_mask=mask)[mask]
        assert_values(out, dense, lengths)
        pairs = zip(gradients(model, out, x), gradients(model, dense, x), strict=True)
        for grad, expected in pairs:
            assert_gradients(grad, expected, lengths)


@check
def context_gives_keys_and_values(name: str, options: Options) -> None:
    """Cross-attention: another length and width, padded and packed."""
    if not honours(name, options, "cross"):
        return
    layer = {"variant": name, "options": options, "key_dim": 5, "head_dim": 6}
    model = MultiHeadAttention(DIM, HEADS, **layer).double()
    x, context = tokens(), torch.randn(BATCH, 9, 5, dtype=torch.float64)
    mask = padding((9, 4, 1), 9)
    out = model(x, context, key_padding_mask=mask)
    assert out.shape == x.shape
    assert_values(out[1], model(x[1:2], context[1:2, :4])[0])
    bounds = torch.tensor([0, 7, 14, 21]), torch.tensor([0, 9, 13, 14])
    packed = model(
        x.flatten(0, 1), context[mask], cu_seqlens=bounds[0], context_cu_seqlens=bounds[1]
    )
    assert_values(packed, out.flatten(0, 1))


@check
def weights_survive_saving(name: str, options: Options) -> None:
    model = stack(name, options)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = stack(name, options, seed=5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(tokens()), model(tokens()))
    assert torch.equal(copy.deepcopy(model)(tokens()), model(tokens()))


@check
def equal_seeds_are_equal(name: str, options: Options) -> None:
    """Bitwise, in training with dropout."""
    results = []
    for _ in range(2):
        model = stack(name, options, attention_dropout=0.3, output_dropout=0.2)
        x = tokens().requires_grad_()
        out = model(x)
        results.append([out, *gradients(model, out, x)])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@check
def only_its_own_parameters_differ(name: str, options: Options) -> None:
    """Under one seed all other weights, and the random numbers after, are those of `standard`."""
    models, next_numbers = [], []
    for variant, given in (("standard", None), (name, options)):
        torch.manual_seed(11)
        models.append(Stack(variant, given))
        next_numbers.append(torch.rand(3))
        models[-1](tokens().float())
    assert torch.equal(*next_numbers)
    standard, other = (dict(model.named_parameters()) for model in models)
    extra = set(other) - set(standard)
    assert len(extra) == len(list(own_parameters(models[1])))
    assert all(torch.equal(value, other[key]) for key, value in standard.items())
    before = torch.get_rng_state()
    models[1](tokens().float())
    assert torch.equal(torch.get_rng_state(), before), (
        "a forward pass without dropout draws nothing"
    )


@check
def parameters_are_tagged(name: str, options: Options) -> None:
    model = Stack(name, options)
    tags = tag_of(model)
    assert set(tags) == {key for key, _ in model.named_parameters()}
    assert set(tags.values()) <= set(TAGS)
    assert tags["layers.0.k_proj.weight"] == "qk"


@check
def nothing_undeclared_is_taken(name: str, options: Options) -> None:
    """What was not announced raises; a wrong shape names the argument."""
    core = AttentionCore(
        HEADS, 4, variant=name, options=options, requests=(), dim=DIM, projections=SHAPES
    )
    q, x = torch.randn(BATCH, HEADS, TOKENS, 4), torch.randn(BATCH, TOKENS, DIM)
    for argument in (
        {"key_padding_mask": padding()},
        {"bias": torch.zeros(TOKENS, TOKENS)},
        {"state": LayerState()},
        {"x": x[:, 1:]},
    ):
        with pytest.raises(ValueError, match=next(iter(argument))):
            core(q, q, q, **{"x": x, **argument})
