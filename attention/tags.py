"""What each attention parameter is for: learning-rate ratios and weight-decay rules.

`"qk"` query and key projections, `"ov"` value and output projections, `"qkv"` a weight that
holds q, k and v, `"scale"` learned scales of a variant, which take no weight decay.
"""

from __future__ import annotations

from torch import nn

TAGS = ("qk", "ov", "qkv", "scale")


def tag_of(model: nn.Module) -> dict[str, str]:
    """Tag of every attention parameter of a model, by its qualified name.

    Modules say so themselves: any module with a method `parameter_tags()` that maps the names of
    its parameters, relative to itself, to tags. The layers of this package have it; a model with
    projections of its own adds the method to the module that holds them.

    Raises:
        ValueError: a module names a parameter it does not have, or an unknown tag.
    """
    by_identity: dict[int, str] = {}
    for path, module in model.named_modules():
        own = getattr(module, "parameter_tags", None)
        if own is None:
            continue
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, tag in own().items():
            if name not in parameters or tag not in TAGS:
                raise ValueError(
                    f"{path or type(module).__name__}: parameter_tags() gives {name!r}: {tag!r}; "
                    f"parameters: {', '.join(parameters)}; tags: {', '.join(TAGS)}"
                )
            by_identity[id(parameters[name])] = tag
    return {
        name: by_identity[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in by_identity
    }
