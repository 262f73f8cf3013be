"""The one normalisation that the variants share."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from attention.normalize import l2_normalize, layer_norm


def test_values_are_those_of_pytorch() -> None:
    x = torch.randn(2, 3, 5, 4)
    x[0, 0, 0] = 0.0
    x[0, 0, 1] = 1e-14
    torch.testing.assert_close(l2_normalize(x), functional.normalize(x, dim=-1))


def test_derivatives_of_both_orders() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(l2_normalize, x)
    assert torch.autograd.gradgradcheck(l2_normalize, x)


def test_a_zero_vector_has_a_zero_gradient() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(l2_normalize(x).sum(), x)
    assert torch.equal(grad, torch.zeros(2, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_normalised_in_float32(dtype: torch.dtype) -> None:
    """Squares of these overflow or vanish in float16, and lose digits in bfloat16."""
    x = (torch.randn(64, 32) * torch.tensor([3e-5, 300.0]).repeat(32)[:, None]).to(dtype)
    x.requires_grad_()
    out = l2_normalize(x)
    assert out.dtype == dtype
    exact_x = x.detach().double().requires_grad_()
    exact = functional.normalize(exact_x, dim=-1)
    # One rounding, that of the result.
    rounding = 0.55 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), exact, atol=1e-7, rtol=rounding)
    weight = torch.randn(64, 32).to(dtype)
    (grad,) = torch.autograd.grad((out.double() * weight.double()).sum(), x)
    (exact_grad,) = torch.autograd.grad((exact * weight.double()).sum(), exact_x)
    assert grad.dtype == dtype
    error = (grad.double() - exact_grad).norm(dim=-1) / exact_grad.norm(dim=-1)
    assert error.max() < 2 * rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_layer_norm_keeps_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(7, 8), torch.randn(8), torch.randn(8)
    out = layer_norm(x.to(dtype), weight, bias, 1e-6)
    assert out.dtype == dtype
    expected = functional.layer_norm(
        x.to(dtype).double(), (8,), weight.double(), bias.double(), 1e-6
    )
    tolerance = torch.finfo(dtype).eps * 4
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


def test_nothing_of_the_input_is_kept() -> None:
    """Saved are the result, which the kernel saves anyway, and a number a vector."""
    sizes: list[int] = []
    x = torch.randn(4, 6, 8, requires_grad=True)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.data_ptr() != x.data_ptr()
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        l2_normalize(x)
    assert sorted(sizes) == [4 * 6, 4 * 6 * 8]
