"""Equality with the public implementation of Elliptical attention, on stored numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attention import AttentionCore, LayerState

FILE = Path(__file__).parent.parent / "vectors" / "elliptical.npz"


@pytest.fixture(scope="module")
def vectors() -> dict[str, Tensor]:
    with np.load(FILE, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def run(name: str, vectors: dict[str, Tensor], layer: int, dtype: torch.dtype) -> list[Tensor]:
    """Output with heads side by side, then the gradients of q, k and v."""
    core = AttentionCore(3, 8, variant=name, layer=layer, num_layers=2, layer_state=True)
    state = LayerState()
    if layer:
        state.advance(0, vectors["v_prev"].to(dtype), None)
    q, k, v = (vectors[key].to(dtype).requires_grad_() for key in "qkv")
    out = core(q, k, v, state=state).transpose(1, 2).flatten(2)
    grads = torch.autograd.grad((out * vectors["grad_output"].to(dtype)).sum(), (q, k, v))
    return [out, *grads]


def assert_close(found: Tensor, stored: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), stored.double(), atol=tolerance, rtol=0.0)


def test_elliptical_equals_the_published_code(vectors: dict[str, Tensor]) -> None:
    found = run("elliptical", vectors, 1, torch.float32)
    for value, key in zip(found, ("output", "grad_q", "grad_k", "grad_v"), strict=True):
        assert_close(value, vectors[key], 5e-6)
    assert_close(run("elliptical", vectors, 0, torch.float32)[0], vectors["standard_output"], 5e-6)


def test_the_metric_equals_the_published_one(vectors: dict[str, Tensor]) -> None:
    core = AttentionCore(3, 8, variant="elliptical", layer=1, num_layers=2, layer_state=True)
    state = LayerState()
    state.advance(0, vectors["v_prev"], None)
    # With unit vectors as queries and ones as keys the logits are m / sqrt(d).
    eye = torch.eye(8).expand(2, 3, 8, 8)
    queries = torch.cat([eye, torch.zeros(2, 3, 2, 8)], dim=2)
    logits = core.logits(queries, torch.ones(2, 3, 10, 8), vectors["v"], state=state)
    assert_close(logits[..., :8, 0] * 8**0.5, vectors["M"], 1e-6)


def test_elliptical_quest_equals_its_formula(vectors: dict[str, Tensor]) -> None:
    found = run("elliptical_quest", vectors, 1, torch.float64)
    keys = ("output", "grad_q", "grad_k", "grad_v")
    for value, key in zip(found, keys, strict=True):
        assert_close(value, vectors[f"quest_formula_{key}"], 1e-6)
    plain = run("elliptical_quest", vectors, 0, torch.float64)[0]
    assert_close(plain, vectors["quest_plain_formula_output"], 1e-12)
