"""What a training loop tells attention layers beside their input.

    attention.after_step(model)      after every optimizer.step()

Most variants do not listen; those that must be told declare `"needs_steps"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn

from .core import AttentionCore
from .variant import NEEDS_STEPS, NEEDS_WEIGHTS, Projections, Variant


class Projecting(Protocol):
    """A layer with a core that lets its variant see the projections around it.

    :class:`~attention.multihead.MultiHeadAttention` is one; so is any module with these two.
    """

    core: AttentionCore

    def projections(self) -> Projections:
        """Weight and bias of each projection."""


def needs_steps(model: nn.Module) -> bool:
    """Whether a layer of the model must be told of optimizer steps."""
    return any(NEEDS_STEPS in variant.capabilities for _, variant in _listeners(model))


def after_step(model: nn.Module) -> None:
    """Tell the layers of a model that an optimizer step is over."""
    for layer, variant in _listeners(model):
        variant.after_step(layer.projections())


def adopt_weights(model: nn.Module) -> None:
    """Tell the layers that the initial values of a model were drawn anew.

    A layer knows those that it was built with.
    """
    for layer, variant in _listeners(model):
        variant.adopt(layer.projections())


def _listeners(model: nn.Module) -> Iterator[tuple[Projecting, Variant]]:
    for module in model.modules():
        core = getattr(module, "core", None)
        if isinstance(core, AttentionCore) and NEEDS_WEIGHTS in core.variant.capabilities:
            yield module, core.variant  # type: ignore[misc]  # the core was told so
