"""The choice of a variant, handed to the constructors of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import registry
from .core import AttentionCore
from .multihead import MultiHeadAttention


class AttentionFactory:
    """Builds the attention layers of a model, all with one variant.

    Args:
        variant: name of the variant.
        options: its options.

    Raises:
        ValueError: unknown variant or option: found here, before a model is built.
    """

    def __init__(self, variant: str = "standard", options: Mapping[str, Any] | None = None) -> None:
        self.variant = variant
        self.options = dict(options or {})
        registry.configure(variant, self.options)

    def __call__(self, dim: int, heads: int, **kwargs: Any) -> MultiHeadAttention:
        """A layer with projections; arguments of :class:`MultiHeadAttention`."""
        return MultiHeadAttention(dim, heads, variant=self.variant, options=self.options, **kwargs)

    def core(self, heads: int, head_dim: int, **kwargs: Any) -> AttentionCore:
        """A layer without projections; arguments of :class:`AttentionCore`."""
        return AttentionCore(heads, head_dim, variant=self.variant, options=self.options, **kwargs)

    def __repr__(self) -> str:
        return f"AttentionFactory({self.variant!r}, {self.options})"
