"""A sink on all the ways it can be computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention import Call, Prepared, kernels, recompute
from attention.sinks import with_sink_as_key
from tests.attention.pairs import B, H, N, assert_equal, core, heads

MASKS = ["none", "causal", "padding", "bias", "hidden", "all"]


def call_with(masks: str) -> Call:
    """A request with one kind of mask; the second example of a padded one has no key at all."""
    real = torch.arange(N) < torch.tensor([N - 2, 0])[:, None]
    bias = torch.randn(N, N, generator=torch.Generator().manual_seed(3)).double()
    if masks in ("hidden", "all"):
        bias[1] = -torch.inf
    return Call(
        real if masks in ("padding", "all") else None,
        bias if masks in ("bias", "hidden", "all") else None,
        causal=masks in ("causal", "all"),
    )


def explicit(prepared: Prepared, call: Call) -> Tensor:
    """One more column of scores, dropped after the softmax, as in the published code."""
    logits = kernels.masked_logits(prepared._replace(sink=None), call)
    column = torch.as_tensor(prepared.sink).to(logits).expand(B, H, N, 1)
    return torch.cat([logits, column], -1).softmax(-1)[..., :-1] @ prepared.v


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("way", ["fused", "stored", "recomputed", "key"])
def test_all_ways_agree(
    way: str, learned: bool, masks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = heads()
    leaves = [q, k, v]
    sink: Any = 0.0
    if learned:
        sink = torch.tensor([-1.0, 0.5, 2.0]).double().view(H, 1, 1).requires_grad_()
        leaves.append(sink)
    call = call_with(masks)
    prepared = Prepared(q, k, v, 0.5, sink)
    if way == "key":
        out = kernels.attend(*with_sink_as_key(prepared, call))
    else:
        if way != "fused":
            monkeypatch.setattr(kernels, "_fused_kernel_fits", lambda *_: False)
        if way == "recomputed":
            monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", 0)
            monkeypatch.setattr(recompute, "BLOCK_SCORES", 2 * H * N)
        out = kernels.attend(prepared, call)
    assert_equal(out, explicit(prepared, call), *leaves)
    if masks in ("padding", "all"):
        assert (out[1] == 0).all()


@pytest.mark.parametrize("name", ["softmax1", "sink"])
def test_the_fused_kernel_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = kernels.attend_with_sink
    monkeypatch.setattr(
        kernels, "attend_with_sink", lambda *args: (calls.append("fused"), original(*args))[1]
    )
    core(name)(*heads())
    assert calls == ["fused"]


@pytest.mark.parametrize("masks", MASKS)
def test_a_sink_at_minus_infinity_is_standard(masks: str) -> None:
    q, k, v = heads()
    sink = core("sink")
    sink.variant.sink.data.fill_(-torch.inf)
    call = call_with(masks)
    outputs = []
    for layer in (sink, core("standard")):
        prepared = layer.variant.prepare(q, k, v, call)
        outputs.append(kernels.attend(prepared, call))
    assert_equal(*outputs, q, k, v)
    (grad,) = torch.autograd.grad(outputs[0].sum(), sink.variant.sink)
    assert (grad == 0).all()


def test_a_sink_at_zero_is_softmax_off_by_one() -> None:
    q, k, v = heads()
    assert_equal(core("sink")(q, k, v), core("softmax1")(q, k, v), q, k, v)
    started = core("sink", options={"start": 1.5})
    assert (started.variant.sink == 1.5).all()


def test_softmax_off_by_one_far_above_zero_is_standard() -> None:
    """e^-60 is nothing to a float64."""
    q, k, v = heads()
    given = {"bias": torch.full((N, N), 60.0).double()}
    assert_equal(core("softmax1")(q, k, v, **given), core("standard")(q, k, v), q, k, v)


def test_softmax_off_by_one_far_below_zero_attends_to_nothing() -> None:
    q, k, v = heads()
    out = core("softmax1")(q, k, v, bias=torch.full((N, N), -800.0).double())
    assert (out == 0).all()


@pytest.mark.parametrize("shape", [(0, H, N, 8), (B, H, 0, 8), (B, H, N, 8)])
def test_empty_and_strided_input(shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(*shape[:2], shape[3], shape[2]).double().mT for _ in range(3))
    prepared = Prepared(q, k, v, 0.5, 0.0)
    out = kernels.attend(prepared, Call())
    assert out.shape == shape
    if out.numel():
        torch.testing.assert_close(out, explicit(prepared, Call()))


def test_half_precision_keeps_the_precision_of_the_sink() -> None:
    """A logit of 6.03 is 6.03125 in bfloat16: what it weighs is seen in float32."""
    q = torch.zeros(1, 1, 1, 4).bfloat16()
    v = torch.ones(1, 1, 1, 4).bfloat16()
    sink = torch.tensor(6.03).view(1, 1, 1)
    weight = kernels.attend(Prepared(q, q, v, 1.0, sink), Call())[..., 0].float()
    expected = torch.sigmoid(-sink)
    torch.testing.assert_close(weight, expected.bfloat16().float(), rtol=2**-9, atol=0)
