"""What looks like attention and was not recognised, so that a swap can say so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

from torch import nn

NAME = re.compile(r"(?i:attention|attn)|(?:MSA|MHA|MHSA)$")
CALLS = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")


def looks_like_attention(module: nn.Module) -> bool:
    """By the name of the class, or because its `forward` calls an attention of PyTorch."""
    cls = type(module)
    if NAME.search(cls.__name__) or isinstance(module, nn.MultiheadAttention):
        return True
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return code is not None and any(call in code.co_names for call in CALLS)


def reason_of(module: nn.Module) -> str:
    """Why a module that looks like attention is left."""
    if type(module).__module__.startswith("transformers."):
        return (
            "it did not call the attention interface of transformers; if it does with another "
            "input, pass that as example="
        )
    return "unknown attention"


def unknown(modules: Mapping[str, nn.Module], known: set[str]) -> Iterator[tuple[str, nn.Module]]:
    """Modules that look like attention, are not known, and neither hold one nor are part of one.

    Args:
        modules: of a model, by qualified name.
        known: names of the sites among them.
    """
    found = [
        name
        for name, module in modules.items()
        if name not in known
        and not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        and looks_like_attention(module)
    ]
    for name in found:
        others = known.union(found) - {name}
        if not any(_holds(name, other) for other in others) and not any(
            _holds(other, name) for other in known
        ):
            yield name, modules[name]


def _holds(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))
