"""The small model that the conformance checks run, the same for every variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attention import (
    AttentionCore,
    Call,
    LayerState,
    MultiHeadAttention,
    UnsupportedError,
    registry,
)

DIM, HEADS, BATCH, TOKENS = 12, 3, 3, 7


class Stack(nn.Module):
    """Two attention layers with residuals, handing on the state of the forward pass.

    Two, so that variants which look at the layer before do what they are for.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None, **layer: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MultiHeadAttention(
                DIM,
                HEADS,
                variant=name,
                options=options,
                layer=index,
                num_layers=2,
                layer_state=True,
                **layer,
            )
            for index in range(2)
        )

    def forward(self, x: Tensor, context: Tensor | None = None, **call: Any) -> Tensor:
        state = LayerState()
        for layer in self.layers:
            x = x + layer(x, context, state=state, **call)
        return x


def stack(
    name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, **layer: Any
) -> Stack:
    """A stack in float64 whose learned scales are away from their initial values."""
    torch.manual_seed(seed)
    model = Stack(name, options, **layer).double()
    with torch.no_grad():
        for parameter in own_parameters(model):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class Seen:
    """What goes into a core, and what comes out of it, in the forward pass inside the context."""

    def __init__(self, core: AttentionCore) -> None:
        self._core = core

    def __enter__(self) -> Seen:
        self._hooks = [
            self._core.register_forward_pre_hook(self._before, with_kwargs=True),
            self._core.register_forward_hook(self._after, with_kwargs=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, core: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        self.q, self.k, self.v = args
        state = kwargs["state"]
        self.call = Call(state=None if state is None else state.copy(), x=kwargs["x"])
        self.prepared = self._core.variant.prepare(self.q, self.k, self.v, self.call)

    def _after(self, core: nn.Module, args: Any, kwargs: Any, out: Tensor) -> None:
        self.out = out

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are the softmax of the logits."""
        map_ = self.prepared.map
        return self.prepared.sink is None and (map_ is None or map_.is_softmax)

    def explicit(self, weights: Tensor) -> Tensor:
        """The output (B, H, Nq, D) from attention weights."""
        return self._core.variant.finish(weights @ self.prepared.v, self.call)


SHAPES = {"q": (DIM, DIM), "k": (DIM, DIM), "v": (DIM, DIM), "out": (DIM, DIM)}
"""Of the projections around a core that is tested by itself."""


def own_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters that the variant adds to the projections."""
    for name, parameter in model.named_parameters():
        if ".variant." in name:
            yield parameter


def honours(name: str, options: Mapping[str, Any] | None, capability: str) -> bool:
    """Whether a variant takes a capability; checks that it says so where it is built.

    What is not declared has to be refused. What is declared may be refused for some options: which
    ones do is pinned in test_conformance.py.
    """
    requested: dict[str, Any] = (
        {capability: True} if capability in ("causal", "cross") else {"requests": {capability}}
    )
    try:
        Stack(name, options, **requested)
    except UnsupportedError as error:
        if name not in str(error):
            raise AssertionError("the message does not name the variant") from error
        return False
    assert capability in registry.entry(name).capabilities, f"{capability} undeclared, not refused"
    return True


def tokens(seed: int = 1, batch: int = BATCH, length: int = TOKENS) -> Tensor:
    """(batch, length, DIM) random input."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, DIM, generator=generator, dtype=torch.float64)


def padding(lengths: tuple[int, ...] = (7, 4, 1), length: int = TOKENS) -> Tensor:
    """(B, length) mask, True for the first tokens of each example."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def gradients(model: nn.Module, out: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of a fixed weighting of `out`, of the inputs, then of all parameters."""
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    wanted = [*inputs, *model.parameters()]
    grads = torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True)
    return [
        torch.zeros_like(tensor) if grad is None else grad
        for tensor, grad in zip(wanted, grads, strict=True)
    ]
