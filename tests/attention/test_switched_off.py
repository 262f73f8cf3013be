"""Each rival with its mechanism switched off equals `standard`, in value and gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import AttentionCore, Call, MultiHeadAttention, kernels
from tests.attention.pairs import B, D, H, N, assert_equal, core, heads
from tests.conformance.models import Seen


def test_mup_of_width_one() -> None:
    """1/d is 1/sqrt(d) there; elsewhere it is standard of shorter queries."""
    q, k, v = heads(width=1)
    narrow = [AttentionCore(H, 1, variant=name).double() for name in ("mup", "standard")]
    assert_equal(narrow[0](q, k, v), narrow[1](q, k, v), q, k, v)
    q, k, v = heads()
    assert_equal(core("mup")(q, k, v), core("standard")(q / D**0.5, k, v), q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_logn_at_the_length_of_training(causal: bool) -> None:
    q, k, v = heads()
    out = core("logn", causal=causal, options={"train_length": N})(q, k, v)
    expected = core("standard", causal=causal)(q, k, v)
    # In a causal model only the last query sees as many keys.
    rows = slice(N - 1, N) if causal else slice(N)
    assert_equal(out[:, :, rows], expected[:, :, rows], q, k, v)
    if causal:
        assert not torch.allclose(out[:, :, 1:-1], expected[:, :, 1:-1])


@pytest.mark.parametrize("masks", ["none", "padding", "hidden"])
def test_ssmax_where_its_factor_is_one(masks: str) -> None:
    """With as many visible keys for every query, by padding or by a bias of -inf."""
    q, k, v = heads()
    n, given = N, {}
    if masks == "padding":
        n, given = N - 2, {"key_padding_mask": (torch.arange(N) < N - 2).expand(B, N)}
    if masks == "hidden":
        bias = torch.zeros(N, N, dtype=torch.float64).masked_fill_(torch.eye(N) > 0, -torch.inf)
        n, given = N - 1, {"bias": bias}
    ssmax = core("ssmax")
    ssmax.variant.scale.data[:] = 1.0 / math.log(n)
    assert_equal(ssmax(q, k, v, **given), core("standard")(q, k, v, **given), q, k, v)


def test_scales_that_count_keys_count_visible_ones() -> None:
    """A causal model counts up to each query, whatever comes after or is padded before."""
    q, k, v = heads()
    real = torch.ones(B, N, dtype=torch.bool)
    real[:, 1] = False
    for name, factor in (
        ("ssmax", lambda n: torch.log(n)),
        ("logn", lambda n: torch.log(n) / math.log(512)),
    ):
        layer = core(name, causal=True)
        counts = real.cumsum(-1).double()[:, None, :, None]
        expected = core("standard", causal=True).logits(q, k, v, key_padding_mask=real)
        found = layer.logits(q, k, v, key_padding_mask=real)
        torch.testing.assert_close(found, _scaled(expected, factor(counts)))


def test_wide_open_gates() -> None:
    """The last entry of every token is 1 and opens the gates."""
    layers = [
        MultiHeadAttention(D, 2, variant=name, head_dim=D).double()
        for name in ("gated", "standard")
    ]
    layers[1].load_state_dict(layers[0].state_dict(), strict=False)
    gate = layers[0].core.variant.gate.data.zero_()
    gate[..., -1] = 50.0
    x = torch.randn(B, N, D).double()
    x[..., -1] = 1.0
    x.requires_grad_()
    assert_equal(layers[0](x), layers[1](x), x)
    gate[..., -1] = 0.0
    heads = [Seen(layer.core) for layer in layers]
    with heads[0], heads[1]:
        for layer in layers:
            layer(x)
    torch.testing.assert_close(heads[0].out, heads[1].out / 2)


def test_differential_without_its_second_map_and_its_norm() -> None:
    """exp(0) - exp(c) + l0 = 0 for c = log(1 + l0)."""
    q, k, v = heads()
    variant = core("differential", layer=1, num_layers=2).variant
    for name, value in (("query_1", 0.0), ("key_1", 0.0), ("query_2", 1.0)):
        getattr(variant, name).data.fill_(value)
    variant.key_2.data.fill_(math.log1p(variant.start) / (D // 2))
    assert variant.share().abs() < 1e-14
    out = variant.merge(kernels.attend(variant.prepare(q, k, v, Call()), Call()))
    half = D // 2
    standard = AttentionCore(H, half, variant="standard").double()
    expected = [standard(q[..., :half], k[..., :half], part) for part in v.split(half, -1)]
    assert_equal(out, torch.cat(expected, -1), v)
    (of_q, of_k) = torch.autograd.grad(out.square().sum(), (q, k))
    assert (of_q[..., half:] == 0).all()
    assert (of_k[..., half:] == 0).all()


def test_differential_starts_with_the_share_of_its_depth() -> None:
    """0.8 - 0.6 exp(-0.3 l), l from 0, and learned vectors that nearly cancel."""
    for layer, start in ((0, 0.2), (1, 0.3555090675909693), (9, 0.7596767)):
        variant = core("differential", layer=layer, num_layers=10).variant
        assert variant.start == pytest.approx(start, rel=1e-7)
        assert variant.share().item() == pytest.approx(start, abs=0.2)
    variant.norm.data.fill_(2.0)
    out = variant.finish(torch.full((1, H, 1, D), 3.0).double(), Call())
    torch.testing.assert_close(
        out, torch.full_like(out, 2.0 * (1.0 - variant.start)), atol=1e-5, rtol=0
    )


def _scaled(logits: Tensor, factor: Tensor) -> Tensor:
    hidden: Any = logits == -torch.inf
    return (logits.masked_fill(hidden, 0.0) * factor).masked_fill(hidden, -torch.inf)
