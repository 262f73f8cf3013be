"""The kernels of a GPU against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from attention import AttentionCore, flexible, registry
from attention.variant import PROJECTIONS, Call, Prepared
from tests.conformance.models import gradients, honours, padding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "bias", "both"])
@pytest.mark.parametrize("name", registry.names())
def test_a_gpu_agrees_with_the_cpu(name: str, masks: str, dtype: torch.dtype) -> None:
    """A fully padded example and a learned bias included."""
    causal = masks == "causal"
    if causal and not honours(name, None, "causal"):
        return
    shapes = dict.fromkeys(PROJECTIONS, (48, 48))
    core = AttentionCore(3, 16, variant=name, causal=causal, dim=48, projections=shapes)
    leaves = [torch.randn(3, 3, 24, 16).requires_grad_() for _ in range(3)]
    x = torch.randn(3, 24, 48)
    given: dict[str, torch.Tensor] = {}
    if masks in ("padding", "both"):
        given["key_padding_mask"] = padding((24, 0, 5), 24)
    if masks in ("bias", "both"):
        given["bias"] = torch.randn(3, 24, 24).requires_grad_()
        leaves.append(given["bias"])
    results = []
    for device in ("cpu", "cuda"):
        core.to(device)
        kind = dtype if device == "cuda" else torch.float32
        q, k, v = (leaf.to(device, kind) for leaf in leaves[:3])
        there = {key: value.to(device) for key, value in given.items()}
        out = core.to(kind)(q, k, v, x=x.to(device, kind), **there)
        grads = gradients(torch.nn.Identity(), out.cpu().float(), *leaves)
        results.append([out.cpu().float(), *grads])
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    if "key_padding_mask" in given:
        assert (results[1][0][1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "bias", "window", "learned bias"])
@pytest.mark.parametrize("name", ["softcap", "quest+softcap"])
def test_flex_attention_agrees_with_the_blocks_of_the_cpu(
    name: str, masks: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of sequences too long to store their scores."""
    if not flexible.has_derivative(torch.device("cuda")):
        pytest.skip("needs a GPU of compute capability 8.0, and triton")
    taken: list[Prepared] = []
    attend = flexible.attend

    def noted(prepared: Prepared, call: Call) -> torch.Tensor:
        taken.append(prepared)
        return attend(prepared, call)

    monkeypatch.setattr(flexible, "attend", noted)
    tokens, batch = 300, 3
    core = AttentionCore(3, 16, variant=name, options={"cap": 2.0}, causal=masks == "causal")
    leaves = [(2.0 * torch.randn(batch, 3, tokens, 16)).requires_grad_() for _ in range(3)]
    given: dict[str, torch.Tensor] = {}
    if masks == "padding":
        given["key_padding_mask"] = padding((tokens, 0, 5), tokens)
    elif masks == "window":
        away = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() > 9
        given["bias"] = torch.zeros(tokens, tokens).masked_fill(away, -torch.inf)
    elif masks in ("bias", "learned bias"):
        given["bias"] = torch.randn(3, tokens, tokens).requires_grad_(masks == "learned bias")
    results = []
    for device in ("cpu", "cuda"):
        kind = dtype if device == "cuda" else torch.float32
        q, k, v = (leaf.to(device, kind) for leaf in leaves)
        out = core(q, k, v, **{key: value.to(device) for key, value in given.items()})
        grads = gradients(torch.nn.Identity(), out.cpu().float(), *leaves)
        results.append([out.cpu().float(), *grads])
    assert len(taken) == (masks != "learned bias")
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
