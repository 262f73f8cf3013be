"""Transformer-XL: relative positions, memory, and how a variant enters its two terms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domains.language.layers import sinusoid
from domains.language.transformer_xl import TransformerXL, by_key

from .networks import config, network, tokens, variants

HEADS, HEAD = 2, 6


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 7), (1, 5), (5, 6)])
def test_terms_are_moved_to_the_key_of_their_distance(rows: int, columns: int) -> None:
    """Against a loop over all visible pairs."""
    terms = torch.randn(2, 3, rows, columns)
    moved = by_key(terms)
    assert moved.shape == terms.shape
    for i in range(rows):
        position = columns - rows + i
        for j in range(position + 1):
            column = columns - 1 - (position - j)
            assert torch.equal(moved[..., i, j], terms[..., i, column]), (i, j)


def net_of(variant: str = "standard", **changes: object) -> TransformerXL:
    net = network(config("transformer_xl", **changes), variant)
    assert isinstance(net, TransformerXL)
    return net


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def explicit(net: TransformerXL, x: Tensor, variant: str, relative: str) -> Tensor:
    """First layer of one sequence (L, D), pair by pair."""
    layer = net.layers[0]
    maps, length = layer.attention, len(x)
    q, k, v = (p(x).view(length, HEADS, HEAD) for p in (maps.q_proj, maps.k_proj, maps.v_proj))
    r = maps.distance_proj(sinusoid(torch.arange(length), x.shape[1]).double())
    r = r.view(length, HEADS, HEAD)
    root = 1.0 / math.sqrt(HEAD)
    scale = {"standard": root}.get(variant, 1.0)
    content_k = unit(k) if variant == "quest" else k
    q = unit(q) if variant == "qnorm" else q
    if relative == "separate":
        place_r, place_scale = (unit(r) if variant == "quest" else r), scale
    else:
        place_r, place_scale = r, root if relative == "content" else scale
    out = torch.zeros_like(v)
    for h in range(HEADS):
        u, w = net.biases.content[h, 0], net.biases.distance[h, 0]
        for i in range(length):
            logits = torch.stack(
                [
                    scale * (q[i, h] + u) @ content_k[j, h]
                    + place_scale * (q[i, h] + w) @ place_r[i - j, h]
                    for j in range(i + 1)
                ]
            )
            out[i, h] = logits.softmax(0) @ v[: i + 1, h]
    attended = maps.out_proj(out.flatten(1))
    block = layer.block
    x = block.norm1(x + attended)
    result: Tensor = block.norm2(x + block.contract(F.relu(block.expand(x))))
    return result


@pytest.mark.parametrize("variant", ["standard", "quest", "qnorm"])
@pytest.mark.parametrize("relative", ["separate", "content", "unscaled"])
def test_both_terms_equal_their_formula(variant: str, relative: str) -> None:
    net = net_of(variant, relative=relative, layers=1)
    sequence = tokens(1, 8)
    found, _ = net.hidden(sequence)
    x = net.embedding(sequence[0]) * net.scale
    expected = explicit(net, x, variant, relative)
    torch.testing.assert_close(found[0], expected, atol=1e-6, rtol=0)


def test_the_standard_form_is_the_same_under_all_options() -> None:
    outputs = [
        net_of(relative=relative).hidden(tokens(1, 8))[0]
        for relative in ("separate", "content", "unscaled")
    ]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], atol=1e-12, rtol=0)


def test_options_differ_where_keys_are_normalised() -> None:
    outputs = [
        net_of("quest", relative=relative).hidden(tokens(1, 8))[0]
        for relative in ("separate", "content", "unscaled")
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert not torch.allclose(outputs[first], outputs[second])


@pytest.mark.parametrize("variant", variants("transformer_xl"))
def test_a_layer_with_memory_equals_one_long_pass(variant: str) -> None:
    """One layer: what it remembers are embeddings, which know nothing of their past."""
    net = net_of(variant, layers=1, memory=20)
    sequence = tokens(2, 14)
    whole, _ = net.hidden(sequence)
    memory = net.new_memory()
    for segment, expected in zip(sequence.split(5, 1), whole.split(5, 1), strict=True):
        found, memory = net.hidden(segment, memory=memory)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("variant", variants("transformer_xl"))
def test_layers_with_memory_equal_one_long_pass(variant: str) -> None:
    """All of the past is remembered, so every layer's inputs are those of the long pass."""
    net = net_of(variant, layers=3, memory=20)
    sequence = tokens(2, 14)
    whole, _ = net.log_likelihood(sequence, sequence)
    memory = net.new_memory()
    found = []
    for segment in sequence.split((1, 6, 3, 5), 1):
        part, memory = net.log_likelihood(segment, segment, memory=memory)
        found.append(part)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-12, rtol=0)


def test_a_short_memory_is_not_one_long_pass() -> None:
    """What has been forgotten is missing, so the equality above says something."""
    net = net_of(memory=4)
    sequence = tokens(2, 14)
    whole, _ = net.log_likelihood(sequence, sequence)
    memory = net.new_memory()
    for segment in sequence.split(5, 1):
        found, memory = net.log_likelihood(segment, segment, memory=memory)
        assert [layer.shape for layer in memory.layers] == [(2, min(4, 15), 12)] * 3
    assert not torch.allclose(found, whole[:, -5:])


def test_equal_context_sees_as_many_keys_at_every_position() -> None:
    """The loss of a token does not change with what lies farther back than the memory is long."""
    net = net_of(layers=1, memory=6)
    sequence = tokens(2, 14)
    changed = sequence.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 30

    def scores(stream: Tensor, equal_context: bool) -> Tensor:
        memory = net.new_memory(equal_context=equal_context)
        parts = []
        for segment in stream.split(5, 1):
            part, memory = net.hidden(segment, memory=memory)
            parts.append(part)
        return torch.cat(parts, 1)

    differ = {
        equal: (scores(sequence, equal) != scores(changed, equal)).any(-1).all(0).tolist()
        for equal in (True, False)
    }
    # Token 4 and the five behind it see it: six keys each, themselves included.
    assert differ[True] == [4 <= t < 10 for t in range(15)]
    # The whole second segment remembers it; the third segment's memory begins at token 4.
    assert differ[False] == [t >= 4 for t in range(15)]


def test_distances_above_the_clamp_count_as_the_clamp() -> None:
    """Equal keys behind it are told apart by nothing."""
    net = net_of(layers=1, memory=20)
    sequence = tokens(1, 9)
    swapped = sequence.clone()
    swapped[:, [0, 3]] = swapped[:, [3, 0]]

    def last(stream: Tensor, clamp: int | None) -> Tensor:
        return net.hidden(stream, memory=net.new_memory(clamp=clamp))[0][:, -1]

    torch.testing.assert_close(last(swapped, 6), last(sequence, 6), atol=1e-12, rtol=0)
    assert not torch.allclose(last(swapped, None), last(sequence, None))


def test_no_gradient_reaches_what_is_remembered() -> None:
    net = net_of(memory=6)
    memory = net.new_memory()
    _, memory = net.log_likelihood(tokens(1, 5), tokens(1, 5), memory=memory)
    assert memory.layers
    assert not any(layer.requires_grad for layer in memory.layers)


def test_a_model_without_training_memory_remembers_nothing() -> None:
    net = net_of(memory=0)
    first, memory = net.log_likelihood(tokens(1, 5), tokens(1, 5), memory=net.new_memory())
    assert all(layer.shape[1] == 0 for layer in memory.layers)
    again, _ = net.log_likelihood(tokens(1, 5), tokens(1, 5), memory=memory)
    torch.testing.assert_close(again, first)
