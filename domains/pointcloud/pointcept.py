"""An attention variant inside Pointcept's own Point Transformer V3.

    from attention import AttentionFactory
    from domains.pointcloud import pointcept

    pointcept.install("path/to/Pointcept", AttentionFactory("quest"))

and then, in the same process, whatever builds and trains models there. Parameters of the variant
are named `...attn.core.variant...`; Pointcept's optimizer decays them as all others, and lets them
learn at the rate of blocks.

Without flash attention the variant goes through the kernels of this suite, with the patches that
Pointcept cut. With it, queries and keys are what the variant makes of them, before they are cast
to half precision, and the library's kernel gets the variant's scale: for variants alone that change
each query and key by itself.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from attention import AttentionFactory, UnsupportedError
from attention.core import AttentionCore
from attention.variant import NEEDS_STATE, Call, Variant

MODULE = "pointcept.models.point_transformer_v3.point_transformer_v3m1_base"
FILE = Path(*MODULE.split(".")).with_suffix(".py")
CLASS = "SerializedAttention"

KNOWN = {
    "7f421c1dbf2e8872844cbcc3bfc6d01d97afc8d5c32b6f2fdcc76c34c7a8d0fe": torch.float16,
    "ea378432356cc46f6b75f8e0c01df62f95ceb9ca6c6eb5118e838f5083ef67ae": torch.bfloat16,
}
"""SHA-256 of the source of the class, white space as single spaces, and what its flash path casts
to: that of commits 314afb3 (December 2023) to 10b7490, and from a75c3e0 (August 2025) on, seen up
to d74c646."""


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
    dtype = _dtype_of(root)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module(MODULE)
    if Path(str(module.__file__)).resolve() != root / FILE:
        raise ValueError(
            f"{root}: another Pointcept is imported already, from {module.__file__}; start anew"
        )
    published = getattr(module, CLASS)
    setattr(module, CLASS, with_variant(published, attention, dtype))
    return module


def _dtype_of(root: Path) -> torch.dtype:
    """What the flash path of a checkout casts to."""
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
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest in KNOWN:
                return KNOWN[digest]
    raise ValueError(
        f"{path}: its {CLASS} is none that is known here (commits 314afb3 to d74c646), so that "
        "nothing can be said of what a variant would do in it; check out d74c646"
    )


def with_variant(published: type[Any], attention: AttentionFactory, dtype: torch.dtype) -> type:
    """A subclass of Pointcept's `SerializedAttention` with the variant in it.

    Args:
        published: the class.
        attention: the variant.
        dtype: what its flash path casts to.
    """

    class VariantAttention(published):  # type: ignore[misc]  # known at run time alone
        """`SerializedAttention` with another attention between projection and output."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            width = self.channels // self.num_heads
            if self.scale != width**-0.5:
                raise ValueError(
                    f"qk_scale={self.scale} must be None: the scale belongs to the variant"
                )
            dropped = self.attn_drop if self.enable_flash else self.attn_drop.p
            self.core = attention.core(
                self.num_heads,
                width,
                dropout=dropped,
                requests={"bias"} if self.enable_rpe else set(),
            )
            if NEEDS_STATE in self.core.variant.capabilities:
                raise UnsupportedError(
                    f"attention={self.core.name!r} looks at the layers before, which Pointcept's "
                    "blocks do not hand on"
                )
            if self.enable_flash:
                _refuse_unless_by_token(self.core)

        def forward(self, point: Any) -> Any:
            if not self.enable_flash:
                sizes = point.offset.diff(prepend=point.offset.new_zeros(1))
                self.patch_size = min(int(sizes.min()), self.patch_size_max)
            pad, unpad, ends = self.get_padding_and_inverse(point)
            order = point.serialized_order[self.order_index][pad]
            qkv = self.qkv(point.feat)[order].unflatten(1, (3, self.num_heads, -1))
            out = self._flash(qkv, ends) if self.enable_flash else self._plain(qkv, point, order)
            inverse = unpad[point.serialized_inverse[self.order_index]]
            point.feat = self.proj_drop(self.proj(out.flatten(1)[inverse]))
            return point

        def _plain(self, qkv: Tensor, point: Any, order: Tensor) -> Tensor:
            """(N', 3, H, D) to (N', H, D)."""
            patches = qkv.unflatten(0, (-1, self.patch_size)).permute(2, 0, 3, 1, 4)
            if self.upcast_attention or self.upcast_softmax:
                patches = patches.float()
            bias = self.rpe(self.get_rel_pos(point, order)) if self.enable_rpe else None
            out: Tensor = self.core(*patches.unbind(0), bias=bias)
            return out.transpose(1, 2).flatten(0, 1).to(qkv.dtype)

        def _flash(self, qkv: Tensor, ends: Tensor) -> Tensor:
            """(N', 3, H, D) to (N', H, D)."""
            flash = importlib.import_module("flash_attn").flash_attn_varlen_qkvpacked_func
            q, k, v = (part.transpose(0, 1)[None] for part in qkv.unbind(1))
            prepared = self.core.variant.prepare(q, k, v, Call())
            packed = torch.stack([t[0].transpose(0, 1) for t in prepared[:3]], dim=1)
            out: Tensor = flash(
                packed.to(dtype),
                ends,
                max_seqlen=self.patch_size,
                dropout_p=self.core.dropout if self.training else 0.0,
                softmax_scale=prepared.scale,
            )
            return out.to(qkv.dtype)

    return VariantAttention


def _refuse_unless_by_token(core: AttentionCore) -> None:
    """Flash attention is a softmax over patches that the variant never sees.

    Raises:
        UnsupportedError: what the variant does to a query or key depends on the others, or it has
            more than queries, keys, values and a scale.
    """
    heads, width = core.context.heads, core.context.head_dim
    tokens = torch.linspace(-1.0, 1.0, 3 * heads * 2 * width).view(3, 1, heads, 2, width)
    with torch.no_grad():
        both = core.variant.prepare(*tokens, Call())
        alone = [core.variant.prepare(*tokens[..., i : i + 1, :], Call()) for i in range(2)]
    by_token = both.scale == alone[0].scale and all(
        torch.allclose(together, torch.cat([alone[0][part], alone[1][part]], dim=2))
        for part, together in enumerate(both[:3])
    )
    plain = both.sink is None and both.map is None and core.variant.maps == 1
    unfinished = type(core.variant).finish is Variant.finish
    if not (by_token and plain and unfinished):
        raise UnsupportedError(
            f"attention={core.name!r} is more than queries and keys changed one by one, which is "
            "all that flash attention can serve; set enable_flash=False in Pointcept's model"
        )
