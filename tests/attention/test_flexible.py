"""What is handed to FlexAttention against the reference, in its plain operations on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from attention import AttentionCore, Call, Prepared, flexible, kernels
from attention.variants.entmax15 import Entmax15Map
from attention.variants.softcap import CapMap

BATCH, HEADS, TOKENS, WIDTH = 3, 2, 140, 16


def heads(dtype: torch.dtype = torch.float32, tokens: int = TOKENS) -> Tensor:
    return (2.0 * torch.randn(BATCH, HEADS, tokens, WIDTH)).to(dtype)


def padding() -> Tensor:
    """Real tokens: all, some, none."""
    return torch.arange(TOKENS) < torch.tensor([TOKENS, 5, 0])[:, None]


def window() -> Tensor:
    """Keys less than ten away; the first query sees none."""
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    bias = torch.zeros(TOKENS, TOKENS).masked_fill(distance.abs() >= 10, -torch.inf)
    return bias.index_fill(0, torch.tensor([0]), -torch.inf)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_padding_mask": padding()},
    "causal and padding": {"causal": True, "key_padding_mask": padding()},
    "bias": {"bias": torch.linspace(-3.0, 3.0, HEADS * TOKENS**2).view(HEADS, TOKENS, TOKENS)},
    "bias of keys": {"bias": torch.linspace(-3.0, 3.0, TOKENS)},
    "window": {"bias": window()},
    "all": {"causal": True, "key_padding_mask": padding(), "bias": window()},
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Take that path on a CPU, without a compiler; what went through it.

    Its derivative exists in plain operations, too, but a check keeps CPUs from it.
    """
    calls: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return flex_attention(*args, **kwargs)

    torch._dynamo.reset()
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr(flexible, "has_derivative", lambda device: True)
    monkeypatch.setattr(flexible, "compiled", lambda: noted)
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", 0)
    return calls


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("name", ["softcap", "quest+softcap"])
def test_it_computes_the_reference(
    name: str, masks: str, dtype: torch.dtype, taken: list[Any]
) -> None:
    """Values and gradients; a cap of two bends every score."""
    core = AttentionCore(HEADS, WIDTH, variant=name, options={"cap": 2.0})
    leaves = [heads(dtype).requires_grad_() for _ in range(3)]
    call = Call(**MASKS[masks])
    out = kernels.attend(core.variant.prepare(*leaves, call), call)
    assert len(taken) == 1
    assert out.dtype == dtype
    expected = core.variant.reference(*(leaf.double() for leaf in leaves), call)
    weight = torch.randn(out.shape)
    found = [out, *torch.autograd.grad((out * weight).sum(), leaves)]
    wanted = [expected, *torch.autograd.grad((expected * weight).sum(), leaves)]
    tolerance = 2e-5 if dtype == torch.float32 else 5e-2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=tolerance, rtol=tolerance)
    if call.key_padding_mask is not None:
        assert (out[2] == 0).all()


@torch._dynamo.config.patch(recompile_limit=1)
def test_every_cap_has_its_kernel(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers make a variable of a number that changes, and give up after some kernels."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flex_attention, backend=counter, fullgraph=True)
    monkeypatch.setattr(flexible, "compiled", lambda: compiled)
    q, k, v = (heads(tokens=20) for _ in range(3))
    for cap in (2.0, 3.0, 5.0, 6.0, 7.0, 3.0):
        core = AttentionCore(HEADS, WIDTH, variant="softcap", options={"cap": cap})
        out = kernels.attend(core.variant.prepare(q, k, v, Call()), Call())
        torch.testing.assert_close(out, core.variant.reference(q, k, v, Call()))
    assert counter.frame_count == 5


def call_of(**kwargs: Any) -> tuple[Prepared, Call, float]:
    """Something that it can do, with changes."""
    dropout = kwargs.pop("dropout", 0.0)
    call = Call(**{name: kwargs.pop(name) for name in ("bias", "causal") if name in kwargs})
    given = {"q": heads(), "k": heads(), "v": heads(), "scale": 0.25, "map": CapMap(2.0)}
    return Prepared(**{**given, **kwargs}), call, dropout


@pytest.mark.parametrize(
    "change",
    [
        {"dropout": 0.1},
        {"map": None},
        {"map": Entmax15Map()},
        {"bias": torch.zeros(TOKENS, requires_grad=True)},
        {"causal": True, "q": heads(tokens=3)},
        {"q": heads().double(), "k": heads().double(), "v": heads().double()},
        {"q": heads().bfloat16()},
        {"v": heads()[..., :12]},
    ],
    ids=lambda change: "-".join(change),
)
def test_what_it_cannot_say_takes_another_path(change: dict[str, Any]) -> None:
    assert flexible.expressible(*call_of())
    assert not flexible.expressible(*call_of(**change))


def test_a_bias_that_learns_can_be_said_without_gradients() -> None:
    with torch.no_grad():
        assert flexible.expressible(*call_of(bias=torch.zeros(TOKENS, requires_grad=True)))


def test_a_cpu_takes_blocks() -> None:
    """There FlexAttention has no backward pass."""
    assert not flexible.fits(*call_of())


def test_importing_the_package_leaves_it_alone() -> None:
    code = (
        "import sys, attention;"
        "sys.exit(bool({'torch.nn.attention.flex_attention', 'torch._dynamo'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
