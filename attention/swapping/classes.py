"""The class of a module, exchanged in place: parameters, hooks and references to it stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


class Exchanged(nn.Module):
    """Mixed into the class of a module whose attention was exchanged.

    Copies and pickles name the two classes that the present one is made of.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        mixin, original = type(self).__bases__
        return _rebuild, (mixin, original), self.__getstate__()  # type: ignore[no-untyped-call]


_classes: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


def exchanged_class(mixin: type[Exchanged], original: type[nn.Module]) -> type[nn.Module]:
    """A subclass of `original` that does what `mixin` says; always the same one."""
    key = mixin, original
    if key not in _classes:
        _classes[key] = type(f"Swapped{original.__name__}", key, {"__doc__": mixin.__doc__})
    return _classes[key]


def original_of(module: Exchanged) -> type[nn.Module]:
    """The class that a module had before its attention was exchanged."""
    _, original = type(module).__bases__
    return original


def _rebuild(mixin: type[Exchanged], original: type[nn.Module]) -> nn.Module:
    cls = exchanged_class(mixin, original)
    return cls.__new__(cls)


def give_back(module: nn.Module, original: type[nn.Module], names: Iterable[str]) -> None:
    """Undo an exchange: the module's own class, without the attributes that came with the other.

    Args:
        module: exchanged, or on the way to be.
        original: its own class.
        names: of the attributes, which need not all be there.
    """
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
    module.__class__ = original
