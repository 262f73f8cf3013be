"""The paths that the dispatcher chooses from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attention import AttentionCore, Call, Prepared, kernels, recompute
from attention.maps import probabilities_of

SHAPE = 2, 3, 9, 4


def heads(dtype: torch.dtype = torch.float64, width: int = 4) -> Tensor:
    return torch.randn(*SHAPE[:3], width, dtype=dtype).requires_grad_()


@pytest.fixture
def recomputing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the recomputing path for any size, in blocks of two rows."""
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", 0)
    monkeypatch.setattr(recompute, "BLOCK_SCORES", 2 * 3 * 9)


@pytest.mark.parametrize(
    "bias_shape", [(2, 3, 9, 9), (3, 9, 9), (9, 9), (1, 3, 1, 9), (2, 1, 9, 1), (9,)]
)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("recomputing")
def test_a_learned_bias_gets_its_gradient(
    bias_shape: tuple[int, ...], padded: bool, causal: bool
) -> None:
    q, k, v = heads(), heads(), heads()
    bias = torch.randn(bias_shape, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1] = False
    mask[0, 6:] = False
    call = Call(mask if padded else None, bias, causal)
    weight = torch.randn(*SHAPE, dtype=torch.float64)
    out = kernels.attend(Prepared(q, k, v, 0.5), call)
    logits = kernels.masked_logits(Prepared(q, k, v, 0.5), call)
    expected = probabilities_of(logits) @ v
    torch.testing.assert_close(out, expected)
    inputs = (q, k, v, bias)
    grads = torch.autograd.grad((out * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want)


@pytest.mark.usefixtures("recomputing")
@pytest.mark.parametrize("width", [3, 6])
def test_values_of_another_width(width: int) -> None:
    q, k, v = heads(), heads(), heads(width=width)
    prepared = Prepared(q, k, v, 0.5)
    expected = kernels.masked_logits(prepared, Call()).softmax(-1) @ v
    torch.testing.assert_close(kernels.attend(prepared, Call()), expected)


@pytest.mark.usefixtures("recomputing")
def test_derivatives_with_dropout() -> None:
    """The mask of the backward pass is that of the forward pass."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return kernels.attend(Prepared(q, k, v, 0.5), Call(), dropout=0.3)

    assert torch.autograd.gradcheck(run, (heads(), heads(), heads()), fast_mode=True)


@pytest.mark.usefixtures("recomputing")
def test_half_precision_with_dropout() -> None:
    q, k, v = (heads(torch.float32) for _ in range(3))
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(2)
        prepared = Prepared(q.to(dtype), k.to(dtype), v.to(dtype), 0.5)
        with torch.autocast("cpu", torch.bfloat16):
            out = kernels.attend(prepared, Call(), dropout=0.3)
        assert out.dtype == dtype
        outputs.append(out.float())
    torch.testing.assert_close(*outputs, atol=3e-2, rtol=3e-2)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("limit", [0, 2**30])
def test_dropout_is_right_on_average(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", limit)
    prepared = Prepared(heads().detach(), heads().detach(), torch.ones(SHAPE).double(), 0.5)
    draws = torch.stack([kernels.attend(prepared, Call(), dropout=0.25) for _ in range(400)])
    assert abs(draws.mean() - 1.0) < 0.01
    weights = kernels.masked_logits(prepared, Call()).softmax(-1)
    # Of a sum of independent terms w M / (1 - p): w^2 p / (1 - p) each.
    variance = weights.square().sum(-1).mean() * 0.25 / 0.75
    assert abs(draws.var(0).mean() / variance - 1.0) < 0.05


def test_kept_weights_have_the_asked_probability() -> None:
    generator = torch.Generator().manual_seed(0)
    for dropout in (0.001, 0.1, 0.5, 0.9):
        share = recompute.draw_kept(torch.Size((1001, 1001)), dropout, generator).double().mean()
        assert abs(share - (1 - dropout)) < 4 * (dropout * (1 - dropout) / 1e6) ** 0.5


@pytest.mark.usefixtures("recomputing")
def test_a_second_derivative_is_refused_instead_of_wrong() -> None:
    q = heads()
    out = kernels.attend(Prepared(q, heads(), heads(), 0.5), Call(), dropout=0.3)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_large_attention_with_dropout_takes_the_recomputing_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    original = recompute.RecomputedAttention.apply
    monkeypatch.setattr(
        recompute.RecomputedAttention,
        "apply",
        lambda *args: (calls.append(args), original(*args))[1],
    )
    core = AttentionCore(4, 8, dropout=0.1)
    for tokens, expected in ((16, 0), (300, 1)):
        calls.clear()
        q = torch.randn(1, 4, tokens, 8)
        core(q, q, q)
        assert len(calls) == expected
    core.eval()
    core(q, q, q)
    assert len(calls) == 1


def test_compiled_training_with_dropout_runs() -> None:
    """The recomputing path breaks the graph and is otherwise the same."""
    torch._dynamo.reset()
    core = AttentionCore(4, 8, dropout=0.1)
    q = torch.randn(1, 4, 300, 8, requires_grad=True)
    torch.manual_seed(3)
    expected = core(q, q, q)
    torch.manual_seed(3)
    out = torch.compile(core, backend="aot_eager")(q, q, q)
    torch.testing.assert_close(out, expected)
    out.sum().backward()


@pytest.mark.parametrize("limit", [0, kernels.STORED_SCORES_LIMIT])
@pytest.mark.parametrize("biased", [False, True])
def test_hidden_keys_get_no_attention_in_float16(
    limit: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Visible logits of -45000 lie below a quarter of the lowest float16."""
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", limit)
    q, k = torch.full((1, 1, 2, 1), -150.0).half(), torch.full((1, 1, 3, 1), 300.0).half()
    v = torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0, 9.0]).half().view(1, 1, 3, 2)
    mask = torch.tensor([[True, True, False]])
    bias = torch.zeros(3, requires_grad=True) if biased else None
    out = kernels.attend(Prepared(q, k, v, 1.0), Call(mask, bias, False))
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones_like(out))
