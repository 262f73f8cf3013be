"""Identities between the variants, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attention import AttentionCore, LayerState

B, H, N, D = 2, 3, 6, 8


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, H, N, D, dtype=torch.float64)
    return q, k, v


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def core(name: str, layer: int = 0, **options: Any) -> AttentionCore:
    stacked = {"layer": layer, "num_layers": 2, "layer_state": True} if layer else {}
    return AttentionCore(H, D, variant=name, options=options, **stacked).double()


def equal(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, atol=1e-12, rtol=1e-11)


def test_quest_is_standard_of_unit_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    equal(core("quest")(q, k, v), core("standard")(D**0.5 * q, unit(k), v))


@pytest.mark.parametrize(
    ("name", "free_of_q", "free_of_k"),
    [
        ("standard", False, False),
        ("quest", False, True),
        ("qnorm", True, False),
        ("qknorm", True, True),
        ("qknorm_hs", True, True),
        ("qknorm_ds", True, True),
        ("qknorm_ln", True, True),
        ("elliptical", False, False),
        ("elliptical_quest", False, True),
    ],
)
def test_what_the_norms_do(
    qkv: tuple[Tensor, Tensor, Tensor], name: str, free_of_q: bool, free_of_k: bool
) -> None:
    q, k, v = qkv
    # Smallest factor 1, so that the eps of LayerNorm weighs less than it did.
    factor = 1.0 + 9.0 * torch.rand(B, H, N, 1, dtype=torch.float64)
    logits = core(name).logits
    # LayerNorm has an eps, the l2 forms have none at this size.
    tolerance = 1e-4 if name == "qknorm_ln" else 1e-11
    for free, changed in ((free_of_q, (factor * q, k)), (free_of_k, (q, factor * k))):
        difference = (logits(*changed, v) - logits(q, k, v)).abs().max()
        assert (difference < tolerance) == free


def test_hs_is_quest_with_queries_of_one_sharpness(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    hs = core("qknorm_hs")
    hs.variant.log_scale.data = torch.tensor([0.5, 1.0, 2.0]).double().log().view(H, 1, 1)
    scale = torch.tensor([0.5, 1.0, 2.0]).double().view(H, 1, 1)
    equal(hs(q, k, v), core("quest")(scale * unit(q), k, v))


def test_ds_starts_as_rms_normalisation(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    rms_q, rms_k = (x / x.square().mean(-1, keepdim=True).sqrt() for x in (q, k))
    ds = core("qknorm_ds")
    # The initial value is stored in float32.
    torch.testing.assert_close(ds(q, k, v), core("standard")(rms_q, rms_k, v), atol=1e-7, rtol=1e-6)
    equal(core("qknorm_ds", init="unit")(q, k, v), core("qknorm")(q, k, v))


def test_hs_starts_at_ten_and_stops_at_its_bound(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    cosine = unit(q) @ unit(k).mT
    hs, free = core("qknorm_hs"), core("qknorm_hs", max_scale=None)
    assert hs.variant.log_scale.shape == (H, 1, 1)
    torch.testing.assert_close(hs.logits(q, k, v), 10 * cosine, atol=1e-5, rtol=1e-6)
    for model, expected in ((hs, 100.0), (free, 1000.0)):
        model.variant.log_scale.data.fill_(torch.tensor(1000.0).double().log())
        torch.testing.assert_close(model.logits(q, k, v), expected * cosine)


@pytest.mark.parametrize("scaling", ["max", "mean"])
def test_elliptical_without_change_of_shape_is_plain(
    qkv: tuple[Tensor, Tensor, Tensor], scaling: str
) -> None:
    """m = 1 when all channels change alike; and no constant factor of the change matters."""
    q, k, v = qkv
    for name, plain in (("elliptical", "standard"), ("elliptical_quest", "quest")):
        layer = core(name, layer=1, scaling=scaling)
        state = LayerState()
        state.advance(0, v + 0.7, None)
        equal(layer(q, k, v, state=state), core(plain)(q, k, v))
        outputs = []
        change = torch.randn_like(v)
        for delta in (1.0, 5.0):
            state = LayerState()
            state.advance(0, v + change / delta, None)
            outputs.append(layer(q, k, v, state=state))
        equal(*outputs)
        assert not torch.allclose(outputs[0], core(plain)(q, k, v))


def test_quest_attends_most_to_the_most_similar_key(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    cosine = functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    assert torch.equal(core("quest").probabilities(q, k, v).argmax(-1), cosine.argmax(-1))


def test_quest_cannot_lengthen_its_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    """The gradient of every key is orthogonal to it; that of standard attention is not."""
    q, k, v = qkv
    k.requires_grad_()
    weight = torch.randn(B, H, N, D, dtype=torch.float64)
    for name, orthogonal in (("quest", True), ("elliptical_quest", True), ("standard", False)):
        (grad,) = torch.autograd.grad((core(name)(q, k, v) * weight).sum(), k)
        assert ((grad * k).sum(-1).abs().max() < 1e-13) == orthogonal
