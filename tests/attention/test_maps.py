"""Maps other than the softmax: their identities, and the blocks that they are computed in."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import Call, Prepared, kernels, recompute
from attention.mapped import MappedAttention
from attention.maps import ScoreMap
from attention.variants.entmax15 import Entmax15Map
from attention.variants.sigmoid import SigmoidMap
from attention.variants.softcap import CapMap
from attention.variants.softpick import SoftpickMap
from tests.attention.pairs import B, H, N, assert_equal, core, heads

MAPS = [CapMap(2.0), SigmoidMap(), SoftpickMap(), Entmax15Map()]
IDS = [type(map_).__name__ for map_ in MAPS]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute for any size, two rows a block."""
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", 0)
    monkeypatch.setattr(recompute, "BLOCK_SCORES", 2 * H * N)


@pytest.mark.parametrize("bias_shape", [None, (B, H, N, N), (N, N), (H, 1, N), (B, 1, N, 1), (N,)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("map_", MAPS, ids=IDS)
def test_blocks_equal_stored_scores(
    map_: ScoreMap,
    causal: bool,
    padded: bool,
    bias_shape: tuple[int, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learned bias gets its gradient, a fully padded example gives zeros."""
    q, k, v = heads()
    leaves = [q, k, v]
    bias = None
    if bias_shape is not None:
        bias = torch.randn(bias_shape, dtype=torch.float64, requires_grad=True)
        leaves.append(bias)
    real = torch.arange(N) < torch.tensor([N - 2, 0])[:, None]
    call = Call(real if padded else None, bias, causal)
    prepared = Prepared(q, k, v, 0.7, map=map_)
    outputs = []
    for limit in (2**18, 0):
        monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", limit)
        monkeypatch.setattr(recompute, "BLOCK_SCORES", 2 * H * N)
        outputs.append(kernels.attend(prepared, call))
    assert_equal(*outputs, *leaves)
    if padded:
        assert (outputs[1][1] == 0).all()


@pytest.mark.parametrize("map_", MAPS, ids=IDS)
@pytest.mark.usefixtures("blocks")
def test_derivatives_with_dropout(map_: ScoreMap) -> None:
    """The mask of the backward pass is that of the forward pass."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return kernels.attend(Prepared(q, k, v, 0.5, map=map_), Call(), dropout=0.3)

    assert torch.autograd.gradcheck(run, heads(), fast_mode=True)


@pytest.mark.usefixtures("blocks")
def test_a_second_derivative_is_refused_instead_of_wrong() -> None:
    q, k, v = heads()
    out = kernels.attend(Prepared(q, k, v, 0.5, map=SigmoidMap()), Call())
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_large_attention_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    original = MappedAttention.apply
    monkeypatch.setattr(
        MappedAttention, "apply", lambda *args: (calls.append(args), original(*args))[1]
    )
    for tokens, expected in ((6, 0), (300, 1)):
        calls.clear()
        core("softcap")(*heads(tokens=tokens))
        assert len(calls) == expected


def test_a_far_cap_is_standard() -> None:
    q, k, v = heads()
    far = core("softcap", options={"cap": 1e9})
    assert_equal(far(q, k, v), core("standard")(q, k, v), q, k, v)


def test_a_near_cap_bounds_the_logits_but_not_the_bias() -> None:
    q, k, v = heads()
    near = core("softcap", options={"cap": 0.5})
    logits = near.logits(20 * q, k, v)
    assert 0.45 < logits.abs().max() <= 0.5
    bias = torch.full((N, N), 7.0).double()
    torch.testing.assert_close(near.logits(20 * q, k, v, bias=bias), logits + 7.0)


def test_sigmoids_of_equal_scores_average_the_values() -> None:
    """sigmoid(-log n) = 1 / (n + 1): a row sums to n / (n + 1)."""
    q, k, v = heads()
    out = core("sigmoid")(torch.zeros_like(q), k, v)
    torch.testing.assert_close(out, v.sum(2, keepdim=True).expand_as(v) / (N + 1))


def test_small_sigmoids_are_a_softmax_that_is_not_normalised() -> None:
    q, k, v = heads()
    low = torch.full((N, N), -30.0).double()
    weights = core("sigmoid").probabilities(q, k, v, bias=low)
    expected = torch.exp(core("standard").logits(q, k, v, bias=low)) / N
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=0)


def test_sigmoids_count_the_keys_that_each_query_sees() -> None:
    q, k, v = heads()
    weights = core("sigmoid", causal=True).probabilities(torch.zeros_like(q), k, v)
    counts = torch.arange(1.0, N + 1).double()
    torch.testing.assert_close(weights.sum(-1), (counts / (counts + 1)).expand(B, H, N))


def test_softpick_far_above_zero_is_standard() -> None:
    """eps weighs 1e-8 there, e^-60 nothing."""
    q, k, v = heads()
    high = torch.full((N, N), 60.0).double()
    out, expected = core("softpick")(q, k, v, bias=high), core("standard")(q, k, v)
    torch.testing.assert_close(out, expected, rtol=0, atol=3e-8)


def test_softpick_of_negative_scores_is_nothing() -> None:
    q, k, v = heads()
    low = torch.full((N, N), -90.0).double()
    out = core("softpick")(q, k, v, bias=low)
    assert (out == 0).all()
    assert all((grad == 0).all() for grad in torch.autograd.grad(out.sum(), (q, k, v)))


def test_softpick_by_hand() -> None:
    """e^s - 1 = 1, 3, -1/2, 0 and a hidden key: two keys share 4 / 4.5."""
    logits = torch.tensor([2.0, 4.0, 0.5, 1.0, 0.0]).double().log()
    expected = torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0]).double() / 4.5
    torch.testing.assert_close(
        SoftpickMap().weights(logits, logits > -torch.inf), expected, rtol=1e-8, atol=0
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("length", [1, 2, 17, 4000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entmax_is_found_to_rounding(length: int, size: float, dtype: torch.dtype) -> None:
    """Against bisection in float64: tau lies between max - 1 and max."""
    scores = size * torch.randn(64, length, generator=torch.Generator().manual_seed(1)).to(dtype)
    weights = Entmax15Map().weights(scores, None).double()
    halves = scores.double() / 2
    low, high = halves.amax(-1, keepdim=True) - 1.0, halves.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        above = (halves - middle).relu().square().sum(-1, keepdim=True) > 1.0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    expected = (halves - low).relu().square()
    # Scores are rounded where they stand, before the largest is taken away.
    tolerance = 20 * torch.finfo(dtype).eps * max(1.0, size)
    torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(weights.sum(-1), torch.ones(64).double(), rtol=0, atol=tolerance)


def test_entmax_of_two_keys_in_closed_form() -> None:
    """p + q = 1 and sqrt(p) - sqrt(q) = half the difference, up to a difference of 2."""
    difference = torch.linspace(0.0, 2.0, 9).double()
    weights = Entmax15Map().weights(torch.stack([difference, torch.zeros(9).double()], -1), None)
    half = difference / 4
    root = half + (0.5 - half.square()).sqrt()
    torch.testing.assert_close(weights[:, 0], root.square())
    assert weights[-1].tolist() == pytest.approx([1.0, 0.0], abs=1e-14)


def test_entmax_of_equal_scores_is_standard_and_of_far_ones_sparse() -> None:
    q, k, v = heads()
    entmax, standard = core("entmax15"), core("standard")
    assert_equal(entmax(0.0 * q, k, v), standard(0.0 * q, k, v), v)
    weights = entmax.probabilities(20 * q, k, v)
    assert (weights == 0.0).double().mean() > 0.5
    shifted = entmax.probabilities(20 * q, k, v, bias=torch.full((N, 1), 3.0).double())
    torch.testing.assert_close(shifted, weights)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.inf, math.nan])
def test_a_cap_is_a_positive_number(cap: float) -> None:
    with pytest.raises(ValueError, match="cap="):
        core("softcap", options={"cap": cap})
