"""An attention variant inside Pointcept's own Point Transformer V3.

A model that is there takes it by `attention.swap(model, "quest")`. Where Pointcept's tools build
the model,

    from attention import AttentionFactory
    from domains.pointcloud import pointcept

    pointcept.install("path/to/Pointcept", AttentionFactory("quest"))

comes before, in the same process. Both are the same (:mod:`attention.swapping.serialized` says what
it does with and without flash attention). Parameters of the variant are named
`...attn.core.variant...`; Pointcept's optimizer decays them as all others, and lets them learn at
the rate of blocks.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from attention import AttentionFactory, swap

MODULE = "pointcept.models.point_transformer_v3.point_transformer_v3m1_base"
FILE = Path(*MODULE.split(".")).with_suffix(".py")
CLASS = "SerializedAttention"

KNOWN = (
    "7f421c1dbf2e8872844cbcc3bfc6d01d97afc8d5c32b6f2fdcc76c34c7a8d0fe",
    "ea378432356cc46f6b75f8e0c01df62f95ceb9ca6c6eb5118e838f5083ef67ae",
)
"""SHA-256 of the source of the class, white space as single spaces: that of commits 314afb3
(December 2023) to 10b7490, whose flash path casts to float16, and from a75c3e0 (August 2025) on,
seen up to d74c646, with bfloat16."""


def install(checkout: str | Path, attention: AttentionFactory) -> ModuleType:
    """Let every PTv3 that is built from now on have another attention.

    Args:
        checkout: folder of a clone of Pointcept, whose requirements are installed.
        attention: the variant.

    Returns:
        The changed module of Pointcept.

    Raises:
        ValueError: the folder is no checkout that is known here, or another one is imported.
        ImportError: what the checkout itself needs is missing.
    """
    root = Path(checkout).resolve()
    _refuse_unknown(root)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module(MODULE)
    if Path(str(module.__file__)).resolve() != root / FILE:
        raise ValueError(
            f"{root}: another Pointcept is imported already, from {module.__file__}; start anew"
        )
    present = getattr(module, CLASS)
    published = getattr(present, "original", present)
    setattr(module, CLASS, with_variant(published, attention))
    return module


def _refuse_unknown(root: Path) -> None:
    """Refuse what is no checkout, or one whose attention was never looked at."""
    path = root / FILE
    if not path.is_file():
        raise ValueError(
            f"{root} is no checkout of Pointcept with PTv3: there is no {FILE.as_posix()}. Clone "
            "https://github.com/Pointcept/Pointcept and name its folder"
        )
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            text = " ".join((ast.get_source_segment(source, node) or "").split())
            if hashlib.sha256(text.encode()).hexdigest() in KNOWN:
                return
    raise ValueError(
        f"{path}: its {CLASS} is none that is known here (commits 314afb3 to d74c646), so that "
        "nothing can be said of what a variant would do in it; check out d74c646"
    )


def with_variant(published: type[Any], attention: AttentionFactory) -> type[Any]:
    """A subclass of Pointcept's `SerializedAttention` with the variant in it.

    Args:
        published: the class.
        attention: the variant.
    """

    class VariantAttention(published):  # type: ignore[misc]  # known at run time alone
        """`SerializedAttention` whose variant is put in as soon as it is built."""

        original = published

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            swap(self, attention.variant, options=attention.options)

    return VariantAttention
