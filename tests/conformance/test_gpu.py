"""The kernels of a GPU against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from attention import AttentionCore, registry
from attention.variant import PROJECTIONS
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
