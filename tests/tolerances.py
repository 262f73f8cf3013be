"""How far two computations of the same thing may differ, by dtype: (absolute, relative)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VALUES = {torch.float64: (1e-12, 1e-11), torch.float32: (2e-6, 1e-5), torch.bfloat16: (4e-2, 4e-2)}
GRADIENTS = {
    torch.float64: (1e-11, 1e-10),
    torch.float32: (1e-5, 1e-4),
    torch.bfloat16: (1e-1, 1e-1),
}


def assert_values(actual: Tensor, expected: Tensor, what: Any = "") -> None:
    """Outputs agree within the tolerance of the dtype of `actual`."""
    _assert(actual, expected, VALUES, what)


def assert_gradients(actual: Tensor, expected: Tensor, what: Any = "") -> None:
    """Gradients agree within the tolerance of the dtype of `actual`."""
    _assert(actual, expected, GRADIENTS, what)


def _assert(actual: Tensor, expected: Tensor, table: Any, what: Any) -> None:
    absolute, relative = table[actual.dtype]
    torch.testing.assert_close(
        actual,
        expected.to(actual.dtype),
        atol=absolute,
        rtol=relative,
        msg=lambda message: f"{what}: {message}",
    )
