"""Weights of a pretrained Vision Transformer for the encoder."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from domains.common.vit import VisionTransformer, resize_positions
from domains.contract import DataCorrupt, DataUnavailable

WRAPPER = "model"
"""Key that DeiT's files hold their parameters under."""

CLASSIFIER = "head."
"""Parameters of a file that have no place in an encoder without a classifier."""


def require_weights(path: str) -> Path:
    """The file of that name.

    Raises:
        DataUnavailable: there is none.
    """
    found = Path(path).expanduser()
    if not found.is_file():
        raise DataUnavailable(
            f"model.init={path}: there is no such file. Put the weights of a ViT with timm's "
            "parameter names there (see domains/segmentation/README.md), or set model.init= to "
            "train the encoder from scratch"
        )
    return found


def load_encoder(
    encoder: VisionTransformer, path: str, *, allow: Sequence[str] = ()
) -> tuple[str, ...]:
    """Fill an encoder with the weights of a file.

    Positions for another number of patches are resized; a classifier in the file is left out.

    Args:
        encoder: receives the weights.
        path: file as DeiT publishes it, with or without the `model` wrapper.
        allow: beginnings of the names of parameters that may differ; these stay as they are.

    Returns:
        Names of the parameters that differ and were allowed to.

    Raises:
        DataUnavailable: there is no such file.
        DataCorrupt: it cannot be read as a file of weights.
        ValueError: parameters are missing, unknown or of another shape.
    """
    given = _read(require_weights(path))
    given = {name: value for name, value in given.items() if not name.startswith(CLASSIFIER)}
    wanted = encoder.state_dict()
    if "pos_embed" in given:
        given["pos_embed"] = _fitting_positions(encoder, given)
    differ = {
        **dict.fromkeys(wanted.keys() - given.keys(), "missing in the file"),
        **dict.fromkeys(given.keys() - wanted.keys(), "unknown here"),
        **{
            name: f"shape {tuple(given[name].shape)}, here {tuple(wanted[name].shape)}"
            for name in wanted.keys() & given.keys()
            if given[name].shape != wanted[name].shape
        },
    }
    refused = {
        name: why for name, why in sorted(differ.items()) if not name.startswith(tuple(allow))
    }
    if refused:
        listed = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise ValueError(
            f"model.init={path} does not fit the model: {listed}. Choose the recipe that the "
            "weights are for, or name what may differ in model.init_allow"
        )
    fitting = {name: value for name, value in given.items() if name not in differ}
    encoder.load_state_dict(fitting, strict=False)
    return tuple(sorted(differ))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        first = (str(error).splitlines() or ["nothing was read"])[0]
        raise DataCorrupt(f"{path} cannot be read as a file of weights: {first}") from error
    if isinstance(found, Mapping) and isinstance(found.get(WRAPPER), Mapping):
        found = found[WRAPPER]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise DataCorrupt(f"{path} holds no parameters by name, bare or under '{WRAPPER}'")
    return dict(found)


def _fitting_positions(encoder: VisionTransformer, given: Mapping[str, Tensor]) -> Tensor:
    """Positions of a file for the grid of an encoder, or as they are where they cannot be."""
    positions = given["pos_embed"]
    extra = sum(name in given for name in ("cls_token", "dist_token"))
    side = math.isqrt(max(0, positions.shape[1] - extra))
    if side**2 + extra != positions.shape[1] or positions.shape[1] == extra:
        return positions
    if encoder.num_extra < extra:  # a token that the encoder does not have takes its place along
        positions = torch.cat([positions[:, : encoder.num_extra], positions[:, extra:]], dim=1)
        extra = encoder.num_extra
    if (side, side) == encoder.grid:
        return positions
    return resize_positions(positions, (side, side), encoder.grid, extra, encoder.resize)
