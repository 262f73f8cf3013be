"""Attention mechanisms behind one interface.

    from attention import MultiHeadAttention, registry

    layer = MultiHeadAttention(256, 8, variant="quest")
    registry.names()

Imports torch and the standard library only; the folder can be copied into another project.
"""

from . import registry
from .core import AttentionCore
from .factory import AttentionFactory
from .multihead import MultiHeadAttention
from .steps import after_step
from .variant import Call, Context, LayerState, Prepared, UnsupportedError, Variant

__all__ = [
    "AttentionCore",
    "AttentionFactory",
    "Call",
    "Context",
    "LayerState",
    "MultiHeadAttention",
    "Prepared",
    "UnsupportedError",
    "Variant",
    "after_step",
    "registry",
]
