"""The serialized attention of Point Transformer V3, as Pointcept and its offspring write it.

Points stand in a line and are cut into patches; attention stays inside a patch. Known by its parts
and by what it computes, for points made up when a model is looked at; the line, the patches and the
relative positions stay the module's own.

Without flash attention the variant goes through the kernels of this package; what the module casts
to float32 (`upcast_attention`, `upcast_softmax`) is computed in it. With flash attention, queries
and keys are what the variant makes of them, before they are cast to half precision, and the
library's kernel gets the variant's scale: for variants alone that change each query and key by
itself.

Source: Pointcept/Pointcept at d74c646 and Pointcept/PointTransformerV3 at 3229e9b,
`SerializedAttention` (MIT).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ..core import AttentionCore
from ..normalize import widen
from ..variant import NEEDS_INPUT, NEEDS_WEIGHTS, Call, UnsupportedError, Variant
from .classes import exchanged_class, give_back, original_of
from .fused import TOLERANCES
from .projected import Projected
from .site import Choice, CoreSite, Place, Site, Stack

PARTS = {"qkv", "attn_drop", "proj", "proj_drop", "softmax", "rpe"}
ATTRIBUTES = (
    "channels",
    "num_heads",
    "scale",
    "order_index",
    "patch_size",
    "upcast_attention",
    "upcast_softmax",
    "enable_rpe",
    "enable_flash",
    "get_rel_pos",
    "get_padding_and_inverse",
)
LIBRARY = "flash_attn"
"""Under which name the module's file has the library of flash attention."""


class SwappedSerialized(Projected):
    """Such an attention with a variant inside."""

    flash_dtype: torch.dtype | None

    order_index: int
    patch_size: int
    patch_size_max: int
    upcast_attention: bool
    upcast_softmax: bool
    enable_rpe: bool
    enable_flash: bool
    get_padding_and_inverse: Any
    get_rel_pos: Any
    rpe: Any
    proj_drop: nn.Module

    def forward(self, point: Any) -> Any:
        """Attention of points to those of their patch.

        Args:
            point: Pointcept's structure; `feat` (N, C) is replaced by the output.
        """
        if not self.enable_flash:
            sizes = point.offset.diff(prepend=point.offset.new_zeros(1))
            self.patch_size = min(int(sizes.min()), self.patch_size_max)
        pad, unpad, ends = self.get_padding_and_inverse(point)
        order = point.serialized_order[self.order_index][pad]
        qkv = self.project_in(point.feat)[order].view(len(order), 3, self.num_heads, -1)
        out = self._by_flash(qkv, ends) if self.enable_flash else self._by_core(qkv, point, order)
        inverse = unpad[point.serialized_inverse[self.order_index]]
        point.feat = self.proj_drop(self.project_out(out.flatten(1)[inverse]))
        return point

    def _by_core(self, qkv: Tensor, point: Any, order: Tensor) -> Tensor:
        """(N', 3, H, D) to (N', H, D), N' points with those that fill up patches."""
        patches = qkv.view(-1, self.patch_size, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        if self.upcast_attention or self.upcast_softmax:
            patches = widen(patches)
        q, k, v = patches.unbind(0)
        bias, x = None, None
        if self.enable_rpe:
            bias = self.rpe(self.get_rel_pos(point, order))
        if NEEDS_INPUT in self.core.variant.capabilities:
            x = point.feat[order].unflatten(0, (-1, self.patch_size))
        out: Tensor = self.core(self.with_own_scale(q), k, v, bias=bias, x=x)
        return out.transpose(1, 2).flatten(0, 1).to(qkv.dtype)

    def _by_flash(self, qkv: Tensor, ends: Tensor) -> Tensor:
        """(N', 3, H, D) to (N', H, D); `ends` (S + 1,) of the patches."""
        if self.core.telemetry is not None:
            raise ValueError(
                "telemetry: flash attention shows no scores; set enable_flash=False in the model"
            )
        q, k, v = (part.transpose(0, 1)[None] for part in qkv.unbind(1))
        prepared = self.core.variant.prepare(self.with_own_scale(q), k, v, Call())
        packed = torch.stack([t[0].transpose(0, 1) for t in prepared[:3]], dim=1)
        library = _names_of(original_of(self))[LIBRARY]
        out: Tensor = library.flash_attn_varlen_qkvpacked_func(
            packed.to(self.flash_dtype),
            ends,
            max_seqlen=self.patch_size,
            dropout_p=self.core.dropout if self.training else 0.0,
            softmax_scale=prepared.scale,
        )
        return out.to(qkv.dtype)


class SerializedSite(CoreSite):
    """Such an attention."""

    def __init__(self, name: str, module: Any) -> None:
        super().__init__(name, module)
        self.original = type(module)
        self.kind = f"{self.original.__module__}.{self.original.__qualname__}"
        self.heads = module.num_heads
        self.head_dim = module.channels // module.num_heads
        self.flash_dtype: torch.dtype | None = None

    @property
    def width(self) -> str:
        return f"{self.heads} heads of {self.head_dim}"

    def build(self, choice: Choice, place: Place) -> None:
        module: Any = self.module
        if choice.needs_state:
            raise UnsupportedError(
                f"attention={choice.variant!r} looks at the layers before, and those of Pointcept "
                "hand nothing on: each has its points in another line"
            )
        self.core = self.new_core(
            choice,
            place,
            self.heads,
            self.head_dim,
            module.qkv.weight,
            dropout=getattr(module.attn_drop, "p", module.attn_drop),
            requests={"bias"} if module.enable_rpe else set(),
            dim=module.channels,
            projections=dict.fromkeys(("q", "k", "v", "out"), (module.channels,) * 2),
        )
        if module.enable_flash and not _changes_tokens_alone(self.core, module.qkv.weight):
            raise UnsupportedError(
                f"attention={choice.variant!r} is more than queries and keys changed one by one, "
                "which is all that flash attention can serve; set enable_flash=False in the model"
            )

    def enter(self) -> None:
        module: Any = self.module
        module.__class__ = exchanged_class(SwappedSerialized, self.original)
        module.core = self.core
        module.flash_dtype = self.flash_dtype
        self.core.variant.adopt(module.projections())

    def leave(self) -> None:
        give_back(self.module, self.original, ("core", "flash_dtype"))


def find(modules: Mapping[str, nn.Module]) -> Iterator[Site]:
    """Sites among the modules of a model, by qualified name."""
    for name, module in modules.items():
        if _has_the_parts(module):
            site = SerializedSite(name, module)
            if _computes_attention(site):
                yield site


def _has_the_parts(module: Any) -> bool:
    if not all(hasattr(module, name) for name in ATTRIBUTES):
        return False
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return (
        not own
        and dict(module.named_children()).keys() <= PARTS
        and isinstance(module.qkv, nn.Linear)
        and isinstance(module.proj, nn.Linear)
        and len(inspect.signature(module.forward).parameters) == 1
        and (not module.enable_flash or LIBRARY in _names_of(type(module)))
    )


def _names_of(cls: type[nn.Module]) -> dict[str, Any]:
    """The global names that the forward pass of a class sees."""
    return inspect.unwrap(cls.forward).__globals__  # type: ignore[no-any-return]


@torch.no_grad()
def _computes_attention(site: SerializedSite) -> bool:
    """Whether a module gives what its parts give as standard attention; finds its flash dtype."""
    module: Any = site.module
    modes, patch_size = {child: child.training for child in module.modules()}, module.patch_size
    module.eval()
    try:
        with _flash_in_torch(site.original) if module.enable_flash else nullcontext({None}) as seen:
            # Past the hooks of the module, which are not to see this.
            expected = module.forward(_made_up_points(module)).feat
            (site.flash_dtype,) = seen
            site.build(Choice("standard", own="keep"), Place(0, 1, Stack()))
            site.enter()
            try:
                out = module.forward(_made_up_points(module)).feat
            finally:
                site.leave()
    except Exception:  # whatever a module of another kind makes of these points
        return False
    finally:
        module.patch_size = patch_size
        for child, training in modes.items():
            child.training = training
    tolerance = TOLERANCES.get(site.flash_dtype or module.qkv.weight.dtype, 5e-2)
    return (
        isinstance(expected, Tensor)
        and expected.shape == out.shape
        and torch.allclose(out, expected, atol=tolerance * float(expected.abs().max()), rtol=0.0)
    )


class _Points(dict[str, Any]):
    """The form of Pointcept's structure: one thing as key and attribute."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _made_up_points(module: Any) -> _Points:
    """Scenes of five and four points, whose line is not its own inverse."""
    weight = module.qkv.weight
    line = torch.tensor([2, 0, 3, 4, 1, 7, 5, 8, 6], device=weight.device)
    lines = line.expand(module.order_index + 1, -1)
    count = torch.arange(9 * module.channels, device=weight.device)
    steps = torch.tensor([3, 5, 7], device=weight.device)
    return _Points(
        feat=count.to(weight.dtype).sin().view(9, -1),
        grid_coord=line[:, None] * steps % 11,
        offset=torch.tensor([5, 9], device=weight.device),
        serialized_order=lines,
        serialized_inverse=lines.argsort(1),
    )


@contextmanager
def _flash_in_torch(cls: type[nn.Module]) -> Iterator[set[torch.dtype]]:
    """Lets a class compute what flash attention would, on any device; tells what it casts to."""
    names, seen = _names_of(cls), set[torch.dtype]()

    def in_torch(
        packed: Tensor, ends: Tensor, *, max_seqlen: int, dropout_p: float, softmax_scale: float
    ) -> Tensor:
        seen.add(packed.dtype)
        out = []
        for patch in torch.split(packed.float(), ends.diff().tolist()):
            q, k, v = patch.permute(1, 2, 0, 3)
            out.append(((q @ k.mT * softmax_scale).softmax(-1) @ v).transpose(0, 1))
        return torch.cat(out).to(packed.dtype)

    library = names[LIBRARY]
    names[LIBRARY] = SimpleNamespace(flash_attn_varlen_qkvpacked_func=in_torch)
    try:
        yield seen
    finally:
        names[LIBRARY] = library


def _changes_tokens_alone(core: AttentionCore, weight: Tensor) -> bool:
    """Whether a variant is a change of every query and key by itself, and a scale.

    Args:
        core: with the variant.
        weight: of a projection, for device and dtype.
    """
    variant, heads, width = core.variant, core.context.heads, core.context.head_dim
    if variant.capabilities & {NEEDS_INPUT, NEEDS_WEIGHTS}:
        return False
    tokens = torch.linspace(-1.0, 1.0, 6 * heads * width).view(3, 1, heads, 2, width).to(weight)
    with torch.no_grad():
        both, first, second = (
            variant.prepare(q, k, v, Call())
            for q, k, v in (tokens, tokens[..., :1, :], tokens[..., 1:, :])
        )
    by_token = both.scale == first.scale and all(
        torch.allclose(together, torch.cat(alone, dim=2))
        for together, *alone in zip(both[:3], first[:3], second[:3], strict=True)
    )
    plain = both.sink is None and both.map is None and variant.maps == 1
    return by_token and plain and type(variant).finish is Variant.finish
