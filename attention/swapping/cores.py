"""The layers of this package, in `MultiHeadAttention` and wherever else a core stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from .. import registry
from ..core import AttentionCore
from ..variant import NEEDS_WEIGHTS, UnsupportedError, Variant
from .site import Choice, Place, Site


class OwnSite(Site):
    """An :class:`AttentionCore`: it keeps its context and is given another variant."""

    kind = "attention.AttentionCore"
    module: AttentionCore
    variant: Variant

    def __init__(self, name: str, module: AttentionCore, parent: nn.Module | None) -> None:
        super().__init__(name, module)
        self.parent = parent
        self.original = module.name, module.variant

    @property
    def width(self) -> str:
        context = self.module.context
        return f"{context.heads} heads of {context.head_dim}"

    @property
    def added(self) -> int:
        return sum(parameter.numel() for parameter in self.variant.parameters())

    def build(self, choice: Choice, place: Place) -> None:
        context = self.module.context
        if choice.needs_state and place.num_layers != context.num_layers:
            raise UnsupportedError(
                f"attention={choice.variant!r} looks at the layers before; choose all "
                f"{context.num_layers} that follow one another, not {place.num_layers}"
            )
        self.choice = choice
        self.variant = registry.build(choice.variant, context, choice.options)
        tensors = [*(self.parent or self.module).parameters(), *self.module.buffers()]
        if tensors:
            self.variant.to(tensors[0].device, tensors[0].dtype)
        self.variant.train(self.module.training)

    def enter(self) -> None:
        self.module.use(self.choice.variant, self.variant)
        if NEEDS_WEIGHTS in self.variant.capabilities:
            assert self.parent is not None  # only a layer with projections declares them
            self.variant.adopt(self.parent.projections())  # type: ignore[operator]

    def leave(self) -> None:
        self.module.use(*self.original)


def find(modules: Mapping[str, nn.Module]) -> Iterator[Site]:
    """Sites among the modules of a model, by qualified name."""
    for name, module in modules.items():
        if isinstance(module, AttentionCore):
            path = name.rpartition(".")[0]
            yield OwnSite(name, module, modules.get(path) if name else None)
