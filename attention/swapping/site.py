"""One attention that was found in a model, and what the variant in its place is built from."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..core import AttentionCore
from ..variant import NEEDS_STATE, LayerState, UnsupportedError

OWN = ("refuse", "keep", "replace")
"""What becomes of mechanisms that a model has itself, see :func:`~attention.swapping.api.swap`."""


class Stack:
    """Attentions that follow one another: hands the state of a forward pass through them.

    The first layer begins a state and the last lets go of it, so that no layer can meet the state
    of another pass.
    """

    def __init__(self) -> None:
        self._state: LayerState | None = None

    def state(self, layer: int, num_layers: int) -> LayerState | None:
        """The state of this pass, for a layer that is about to use it."""
        if layer == 0:
            self._state = LayerState()
        state = self._state
        if layer == num_layers - 1:
            self._state = None
        return state


@dataclass(frozen=True)
class Place:
    """Where a site stands among those that follow one another."""

    layer: int
    num_layers: int
    stack: Stack


@dataclass(frozen=True)
class Choice:
    """What was asked for: the variant, its options, and `own` of the swap."""

    variant: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own: str = "refuse"

    @property
    def needs_state(self) -> bool:
        """Whether the variant looks at the layers before."""
        return NEEDS_STATE in registry.entry(self.variant).capabilities


class Site(ABC):
    """One attention in a model: built first, then put in its place, and taken out again.

    Args:
        name: qualified name of the module in the model.
        module: the module.
    """

    kind: str
    """What it is, in the words of its users."""

    own: tuple[str, ...] = ()
    """Mechanisms of the model's own that the variant would be put on top of."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module

    @property
    @abstractmethod
    def width(self) -> str:
        """Its heads, for the report."""

    @abstractmethod
    def build(self, choice: Choice, place: Place) -> None:
        """Build what :meth:`enter` puts in its place; the model stays as it is.

        Raises:
            ValueError: the variant cannot work here.
        """

    @abstractmethod
    def enter(self) -> None:
        """Put it in its place."""

    @abstractmethod
    def leave(self) -> None:
        """Restore what was there; also after an :meth:`enter` that failed half way."""

    @property
    @abstractmethod
    def added(self) -> int:
        """Number of parameters that the variant brings, once built."""


class CoreSite(Site):
    """A site whose module keeps its projections and is given an :class:`AttentionCore`."""

    core: AttentionCore

    @property
    def added(self) -> int:
        return sum(parameter.numel() for parameter in self.core.parameters())

    def new_core(
        self,
        choice: Choice,
        place: Place,
        heads: int,
        head_dim: int,
        weight: Tensor,
        **context: Any,
    ) -> AttentionCore:
        """A core for the module: on its device, in its dtype and in its mode.

        Args:
            choice, place: from :meth:`build`.
            heads, head_dim: of the queries.
            weight: of a projection.
            context: the other arguments of :class:`AttentionCore`.
        """
        if choice.needs_state and place.num_layers == 1:
            raise UnsupportedError(
                f"attention={choice.variant!r} looks at the layers before, and this one stands "
                "alone; layers that follow one another have names that differ in one number: hold "
                "them in an nn.ModuleList, or choose them with where="
            )
        core = AttentionCore(
            heads,
            head_dim,
            variant=choice.variant,
            options=choice.options,
            layer=place.layer,
            num_layers=place.num_layers,
            layer_state=choice.needs_state,
            **context,
        )
        dtype = weight.dtype if weight.is_floating_point() else torch.get_default_dtype()
        return core.to(weight.device, dtype).train(self.module.training)

    def causal_refusal(self, choice: Choice) -> str | None:
        """Why the variant cannot be causal, where calls decide that; None = it can."""
        try:
            context = dataclasses.replace(self.core.context, causal=True)
            registry.build(choice.variant, context, choice.options)
        except UnsupportedError as error:
            return str(error)
        return None
