"""Put another attention into a model that exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .. import registry
from ..variant import NEEDS_STEPS, UnsupportedError
from . import cores, fused, huggingface, multihead, serialized
from .classes import Exchanged
from .looks import reason_of, unknown
from .report import ROOT, Left, Replaced, SwapReport
from .site import OWN, Choice, Place, Site, Stack

Where = Callable[[str, nn.Module], bool]

FINDERS = (multihead.find, fused.find, serialized.find, cores.find)
"""The kinds of attention that are known."""


def swap(
    model: nn.Module,
    variant: str,
    *,
    where: Where | None = None,
    strict: bool = True,
    options: Mapping[str, Any] | None = None,
    own: str = "refuse",
    example: Mapping[str, Any] | None = None,
) -> SwapReport:
    """Replace the attentions of a model, in place, and keep its weights.

    Known are `nn.MultiheadAttention` wherever it stands (in `nn.TransformerEncoder` and
    `nn.TransformerDecoder`, PyG's `GPSConv`, the vision transformers of mmsegmentation),
    attentions of timm's form, the serialized one of Point Transformer V3, those of `transformers`,
    and the layers of this package. The modules stay where they are, with their parameters under
    their names: a state dict loads into the swapped model and back.

    Swap before a model is wrapped by DistributedDataParallel and before its optimizer is made: a
    variant may bring parameters.

    Args:
        model: any module.
        variant: name of the variant, see `registry.names()`.
        where: chooses by qualified name and module; None = all.
        strict: whether an attention that cannot be replaced is an error. If not, it is left and
            stands in the report. One that `where` leaves out is no error.
        options: options of the variant, see `registry.config_of(name)`.
        own: what becomes of a mechanism of the model's own that shapes its scores, such as
            normalised queries and keys, a cap or a sink: `"refuse"` to swap, `"keep"` it under the
            variant, or `"replace"` it by the variant, which switches it off.
        example: arguments that a model of transformers in it can be called with, which it is to
            find its attentions; None = made up for models of texts and of pictures.

    Returns:
        What was replaced and what was left; its `undo()` restores the original.

    Raises:
        ValueError: nothing to replace was found, an argument is unknown, or, if strict, an
            attention cannot be replaced. The model is then as it was.
        UnsupportedError: a ValueError, too; the variant cannot do what a layer needs.
    """
    choice = Choice(variant, dict(options or {}), own)
    registry.configure(variant, choice.options)
    if own not in OWN:
        raise ValueError(f"own={own!r} is unknown; allowed: {', '.join(OWN)}")
    modules = dict(model.named_modules())
    _refuse_swapped(modules)
    sites = [site for find in FINDERS for site in find(modules)]
    sites += huggingface.find(modules, example)
    left = [
        Left(name, _kind(module), reason_of(module))
        for name, module in unknown(modules, {site.name for site in sites})
    ]
    if where is not None:
        chosen = [site for site in sites if where(site.name, site.module)]
        outside = [Left(s.name, s.kind, "left out by where") for s in sites if s not in chosen]
        outside += [each for each in left if not where(each.name, modules[each.name])]
        left = [each for each in left if each not in outside]
    else:
        chosen, outside = sites, []
    places = _places([site.name for site in chosen])
    ready = []
    for site in chosen:
        try:
            _refuse_own(site, own)
            site.build(choice, places[site.name])
            ready.append(site)
        except ValueError as error:
            if strict:
                raise type(error)(f"{site.name or ROOT}: {error}") from None
            left.append(Left(site.name, site.kind, str(error)))
    if not ready:
        raise ValueError(_nothing_found(model, left, outside))
    if strict and left:
        raise ValueError(
            f"{left[0].name or ROOT} is {left[0].kind}: {left[0].reason}; leave it out with "
            "where=, or pass strict=False to leave what cannot be replaced"
        )
    _refuse_wrapped(model, ready)
    _enter(ready)
    return SwapReport(
        variant,
        choice.options,
        [_replaced(site, places[site.name]) for site in ready],
        [*left, *outside],
        _notes(choice, ready),
        lambda: _leave(ready),
    )


def _places(names: Sequence[str]) -> dict[str, Place]:
    """Sites whose names differ in one number, the last that differs, follow one another."""
    patterns = {name: _patterns(name) for name in names}
    counts = Counter(pattern for each in patterns.values() for pattern in each)
    groups: dict[str, list[tuple[int, str]]] = {}
    for name, numbers in patterns.items():
        shared = [pattern for pattern in numbers if counts[pattern] > 1]
        pattern = shared[-1] if shared else name
        groups.setdefault(pattern, []).append((numbers.get(pattern, 0), name))
    places = {}
    for members in groups.values():
        stack = Stack()
        for layer, (_, name) in enumerate(sorted(members)):
            places[name] = Place(layer, len(members), stack)
    return places


def _patterns(name: str) -> dict[str, int]:
    """For every number in a name, the name without it, and the number."""
    parts = name.split(".")
    return {
        ".".join([*parts[:index], "*", *parts[index + 1 :]]): int(part)
        for index, part in enumerate(parts)
        if part.isdecimal()
    }


def _refuse_swapped(modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        if isinstance(module, Exchanged):
            raise ValueError(
                f"{name or ROOT} was swapped before; call undo() of that report, then swap() again"
            )


def _refuse_own(site: Site, own: str) -> None:
    if site.own and own == "refuse":
        raise UnsupportedError(
            f"this {site.kind} has {' and '.join(site.own)} of its own; pass own='keep' to put the "
            "variant on top of it, or own='replace' to put the variant in its place"
        )


def _refuse_wrapped(model: nn.Module, sites: Sequence[Site]) -> None:
    """A wrapper that collected the parameters does not see those that come later."""
    wrapped = any(
        isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()
    )
    if wrapped and any(site.added for site in sites):
        raise ValueError(
            "this variant brings parameters that DistributedDataParallel would not synchronise; "
            "swap() the model first, then wrap it"
        )


def _enter(sites: Sequence[Site]) -> None:
    entered: list[Site] = []
    try:
        for site in sites:
            entered.append(site)
            site.enter()
    except BaseException:
        _leave(entered)
        raise


def _leave(sites: Sequence[Site]) -> None:
    for site in reversed(sites):
        site.leave()


def _replaced(site: Site, place: Place) -> Replaced:
    return Replaced(site.name, site.kind, site.width, place.layer, place.num_layers, site.added)


def _notes(choice: Choice, sites: Sequence[Site]) -> list[str]:
    notes = []
    if any(site.added for site in sites):
        notes.append("the variant brings parameters; make the optimizer after the swap")
    if NEEDS_STEPS in registry.entry(choice.variant).capabilities:
        notes.append(
            f"{choice.variant} acts after a step: call attention.after_step(model) behind every "
            "optimizer.step()"
        )
    kept = sorted({own for site in sites for own in site.own})
    if kept:
        did = "kept under the variant" if choice.own == "keep" else "replaced by the variant"
        notes.append(f"of the model's own, {did}: {', '.join(kept)}")
    return notes


def _nothing_found(model: nn.Module, left: Sequence[Left], outside: Sequence[Left]) -> str:
    message = f"{type(model).__name__} has no attention that could be replaced"
    if left:
        each = left[0]
        message += f"; {each.name or ROOT} is {each.kind}: {each.reason}"
    elif outside:
        message += f"; where= leaves out all {len(outside)}"
    else:
        message += (
            "; known are nn.MultiheadAttention and what is built of it, timm's form, Pointcept's "
            "serialized attention, models of transformers, and AttentionCore, which a module of "
            "one's own can call instead of scaled_dot_product_attention"
        )
    return message


def _kind(module: nn.Module) -> str:
    cls = type(module)
    return f"{cls.__module__}.{cls.__qualname__}"
