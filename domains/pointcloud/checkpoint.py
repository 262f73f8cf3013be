"""Weights that Pointcept trained, under our names.

| Pointcept, after `backbone.`           | here                                             |
| -------------------------------------- | ------------------------------------------------ |
| `embedding.stem.{conv,norm}`           | `stem.{conv,norm}`                               |
| `enc.encS.down.proj`, `.down.norm.0`   | `pooling.(S - 1).proj`, `.norm`                  |
| `dec.decS.up.proj.{0,1}`               | `unpooling.S.proj`, `.norm`                      |
| `dec.decS.up.proj_skip.{0,1}`          | `unpooling.S.proj_skip`, `.norm_skip`            |
| `enc.encS.blockI`, `dec.decS.blockI`   | `encoder_blocks.S.I`, `decoder_blocks.S.I`       |
| in a block: `cpe.{0,1,2}`              | `context.{conv,linear,norm}`                     |
| `norm1.0`, `norm2.0`                   | `norm_attention`, `norm_mlp`                     |
| `attn.{qkv,proj}`                      | `attention.{qkv,proj}`                           |
| `attn.rpe.rpe_table`                   | `attention.positions.table`                      |
| `mlp.0.{fc1,fc2}`                      | `expand`, `contract`                             |

`seg_head` is `head`; `module.`, which training on several GPUs leaves in front, falls away. Shapes
are the same. What Pointcept trained predicts as it did there under `model.skip_context=true`. Names
are those of Pointcept/Pointcept at d74c646.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from domains.pointcloud.model import PointTransformerV3

IN_BLOCK = {
    "cpe.0": "context.conv",
    "cpe.1": "context.linear",
    "cpe.2": "context.norm",
    "norm1.0": "norm_attention",
    "norm2.0": "norm_mlp",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.proj",
    "attn.rpe.rpe_table": "attention.positions.table",
    "mlp.0.fc1": "expand",
    "mlp.0.fc2": "contract",
}
IN_UNPOOLING = {
    "proj.0": "proj",
    "proj.1": "norm",
    "proj_skip.0": "proj_skip",
    "proj_skip.1": "norm_skip",
}
BLOCK = re.compile(r"backbone\.(enc|dec)\.\1(\d+)\.block(\d+)\.(.+)")
DOWN = re.compile(r"backbone\.enc\.enc(\d+)\.down\.(proj|norm)(?:\.0)?\.(.+)")
UP = re.compile(r"backbone\.dec\.dec(\d+)\.up\.(proj|proj_skip)\.([01])\.(.+)")
SIDES = {"enc": "encoder_blocks", "dec": "decoder_blocks"}


def our_name(name: str) -> str:
    """Our name of a parameter or buffer of Pointcept.

    Raises:
        ValueError: the name is not one of a PTv3 with plain norms.
    """
    plain = name.removeprefix("module.")
    if found := BLOCK.fullmatch(plain):
        side, stage, block, rest = found.groups()
        for theirs, ours in IN_BLOCK.items():
            if rest == theirs or rest.startswith(f"{theirs}."):
                return f"{SIDES[side]}.{stage}.{block}.{ours}{rest.removeprefix(theirs)}"
    elif found := DOWN.fullmatch(plain):
        stage, part, rest = found.groups()
        return f"pooling.{int(stage) - 1}.{part}.{rest}"
    elif found := UP.fullmatch(plain):
        stage, part, number, rest = found.groups()
        return f"unpooling.{stage}.{IN_UNPOOLING[f'{part}.{number}']}.{rest}"
    elif plain.startswith("backbone.embedding.stem."):
        return plain.removeprefix("backbone.embedding.")
    elif plain.startswith("seg_head."):
        return plain.removeprefix("seg_")
    raise ValueError(
        f"'{name}' is no parameter of Pointcept's PTv3 with plain norms: checkpoints of "
        "DefaultSegmentorV2 with PT-v3m1 can be read, without PDNorm"
    )


def load(net: PointTransformerV3, state: Mapping[str, Tensor]) -> None:
    """Put Pointcept's weights into our network.

    Args:
        net: of the same sizes.
        state: the `state_dict` of Pointcept's segmentor.

    Raises:
        ValueError: an unknown name, or sizes or options that differ.
    """
    try:
        net.load_state_dict({our_name(name): tensor for name, tensor in state.items()})
    except RuntimeError as error:
        raise ValueError(
            "the checkpoint is of another network; set the keys of `model` to what it was trained "
            f"with: {error}"
        ) from error


def read(path: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint file of Pointcept.

    Raises:
        ValueError: the file holds more than tensors and plain containers, or no `state_dict`.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than weights, and is not unpickled for safety. Where you trust it, "
            "save its 'state_dict' alone: torch.save({'state_dict': torch.load(path, "
            f"weights_only=False)['state_dict']}}, path) ({error})"
        ) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise ValueError(f"{path} has no 'state_dict': it is no checkpoint of Pointcept")
    state: dict[str, Tensor] = content["state_dict"]
    return state
