"""Many toy models as one: weights with a leading model axis.

Shapes: M models, B samples, N tokens, D = 20 width. The samples are the same for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from domains.toy.folded import FoldedNet, can_be_folded
from domains.toy.model import Looks, ToyTransformer


class ModelStack:
    """M models that differ in their weights alone.

    Args:
        nets: the models; their weights are copied.

    Attributes:
        weights: (M, P) all weights, a row a model.
        parameters: (M, ...) views of `weights` by name, in the order of its columns; leaves of
            autograd.
        net: computes all models at once, see :class:`MappedNet`.
    """

    def __init__(self, nets: Sequence[ToyTransformer]) -> None:
        first = nets[0]
        self.weights = torch.stack(
            [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets]
        )
        named = dict(first.named_parameters())
        columns = torch.split(self.weights, [p.numel() for p in named.values()], dim=1)
        self.parameters = {
            name: column.view(len(nets), *p.shape).requires_grad_()
            for (name, p), column in zip(named.items(), columns, strict=True)
        }
        kind = FoldedNet if can_be_folded(first) else MappedNet
        self.net: FoldedNet | MappedNet = kind(first, self.parameters)

    def write_back(self, nets: Sequence[ToyTransformer]) -> None:
        """Copy the weights into the models."""
        with torch.no_grad():
            for row, net in enumerate(nets):
                for name, parameter in net.named_parameters():
                    parameter.copy_(self.parameters[name][row])

    def columns(self, values: Mapping[str, Sequence[float]]) -> Tensor:
        """(M, P): the values that each parameter has in the M models, in its columns."""
        return torch.cat(
            [
                self.weights.new_tensor(values[name])[:, None].expand(-1, parameter[0].numel())
                for name, parameter in self.parameters.items()
            ],
            dim=1,
        )


class MappedNet:
    """:class:`ToyTransformer` itself, mapped over the models by `torch.func.vmap`.

    Works for every variant and every norm, at two to three times the cost of
    :class:`~domains.toy.folded.FoldedNet`.

    Args:
        net: one of the models.
        parameters: (M, ...) the weights of all, by name.
    """

    def __init__(self, net: ToyTransformer, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self._logits = _mapped(net, net.forward)
        self._looks = _mapped(net, net.looks)

    def prepare(self, tokens_bnd: Tensor) -> Tensor:
        """What the other methods take, of tokens (B, N, D); done once for a split."""
        return tokens_bnd

    def logits(self, prepared: Tensor) -> Tensor:
        """(M, B, classes)."""
        logits: Tensor = self._logits(self._parameters, prepared)
        return logits

    def evaluate(self, prepared: Tensor) -> tuple[Tensor, Looks]:
        """Logits, and what the [CLS] tokens look at, with a leading model axis."""
        return self.logits(prepared), Looks(*self._looks(self._parameters, prepared))


def _mapped(net: nn.Module, method: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """A method of a module as a function of stacked weights by name, and tokens."""
    called = _Method(net, method)

    def one(parameters: dict[str, Tensor], tokens: Tensor) -> Any:
        prefixed = {f"net.{name}": value for name, value in parameters.items()}
        return functional_call(called, prefixed, (tokens,))

    mapped = vmap(one, in_dims=(0, None))

    def run(parameters: dict[str, Tensor], tokens: Tensor) -> Any:
        # The fused kernel has no batching rule and would run model by model.
        with sdpa_kernel(SDPBackend.MATH):
            return mapped(parameters, tokens)

    return run


class _Method(nn.Module):
    """A method of a module, as a module that `functional_call` can call."""

    def __init__(self, net: nn.Module, method: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net = net
        self._method = method

    def forward(self, tokens: Tensor) -> Any:
        return self._method(tokens)
