"""Weights of others for the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention import AttentionFactory
from domains.common.vit import BlockSizes, VisionTransformer, resize_positions
from domains.contract import DataCorrupt, DataUnavailable
from domains.segmentation.checkpoint import load_encoder

SIZES = BlockSizes(layers=2, width=24, heads=3, feedforward=96)


def encoder(side: int = 32, variant: str = "standard", **options: Any) -> VisionTransformer:
    return VisionTransformer(
        SIZES, AttentionFactory(variant), image_size=(side, side), patch=8, **options
    )


def pretrained(side: int = 32, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return encoder(side, classes=7, **options).state_dict()


def saved(folder: Path, content: Any) -> str:
    path = folder / "weights.pth"
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_load_with_and_without_deits_wrapper(tmp_path: Path, wrapped: bool) -> None:
    weights = pretrained()
    content = {"model": weights, "epoch": 3} if wrapped else weights
    net = encoder()
    assert load_encoder(net, saved(tmp_path, content)) == ()
    for name, value in net.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_deits_own_names_are_all_known(tmp_path: Path) -> None:
    """Those of `deit_tiny_patch16_224` with two layers."""
    layer = [
        *(f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")),
        *(f"attn.{map_}.{part}" for map_ in ("qkv", "proj") for part in ("weight", "bias")),
        *(f"mlp.fc{i}.{part}" for i in (1, 2) for part in ("weight", "bias")),
    ]
    outside = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"]
    outside += ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    expected = {*outside, *(f"blocks.{i}.{name}" for i in (0, 1) for name in layer)}
    assert set(pretrained()) == expected


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_positions_of_another_picture_size_are_resized(tmp_path: Path, mode: str) -> None:
    weights = pretrained(56)
    net = encoder(32, resize=mode)
    load_encoder(net, saved(tmp_path, weights))
    expected = resize_positions(weights["pos_embed"], (7, 7), (4, 4), 1, mode)
    assert torch.equal(net.pos_embed, expected)


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    weights = pretrained()
    del weights["norm.weight"]
    weights["extra"] = torch.zeros(2)
    weights["blocks.1.mlp.fc1.bias"] = torch.zeros(95)
    with pytest.raises(ValueError, match=r"model\.init=.*weights\.pth") as refused:
        load_encoder(encoder(), saved(tmp_path, weights))
    for part in (
        "norm.weight: missing in the file",
        "extra: unknown here",
        "blocks.1.mlp.fc1.bias: shape (95,), here (96,)",
        "model.init_allow",
    ):
        assert part in str(refused.value)


def test_what_is_allowed_to_differ_stays_as_it_was(tmp_path: Path) -> None:
    weights = pretrained()
    weights["extra"] = torch.zeros(2)
    net = encoder(variant="qknorm_hs")
    allow = ["extra", "blocks.0.attn.core", "blocks.1.attn.core"]
    before = net.blocks[0].attn.core.variant.log_scale.clone()
    kept = load_encoder(net, saved(tmp_path, weights), allow=allow)
    assert kept == (
        "blocks.0.attn.core.variant.log_scale",
        "blocks.1.attn.core.variant.log_scale",
        "extra",
    )
    assert torch.equal(net.blocks[0].attn.core.variant.log_scale, before)
    assert torch.equal(net.norm.weight, weights["norm.weight"])


def test_a_distillation_token_is_refused_unless_allowed(tmp_path: Path) -> None:
    weights = pretrained(56)
    weights["dist_token"] = torch.zeros(1, 1, 24)
    positions = weights["pos_embed"]
    weights["pos_embed"] = torch.cat([positions[:, :1], positions[:, :1], positions[:, 1:]], dim=1)
    path = saved(tmp_path, weights)
    with pytest.raises(ValueError, match="dist_token: unknown here"):
        load_encoder(encoder(), path)
    net = encoder()
    load_encoder(net, path, allow=["dist_token"])
    assert torch.equal(net.pos_embed, resize_positions(positions, (7, 7), (4, 4), 1, "bilinear"))


def test_positions_that_are_no_square_are_refused(tmp_path: Path) -> None:
    weights = pretrained()
    weights["pos_embed"] = torch.zeros(1, 16, 24)
    with pytest.raises(ValueError, match=r"pos_embed: shape \(1, 16, 24\), here \(1, 17, 24\)"):
        load_encoder(encoder(), saved(tmp_path, weights))


def test_a_file_that_is_not_there_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match=r"model\.init=.*nowhere\.pth.*README"):
        load_encoder(encoder(), str(tmp_path / "nowhere.pth"))


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=r"weights\.pth cannot be read"):
        load_encoder(encoder(), str(path))


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="no parameters by name"):
        load_encoder(encoder(), saved(tmp_path, {"model": 3}))
