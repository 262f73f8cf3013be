"""A checkpoint under Pointcept's names finds its places."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from domains.pointcloud import checkpoint
from domains.pointcloud.batch import Batch

from .clouds import batch_of, draws, scenes, small_net, stored

LINEAR, NORM = ("weight", "bias"), ("weight", "bias")
BATCH_NORM = (*NORM, "running_mean", "running_var", "num_batches_tracked")
BLOCK = {
    "cpe.0": LINEAR,
    "cpe.1": LINEAR,
    "cpe.2": NORM,
    "norm1.0": NORM,
    "attn.qkv": LINEAR,
    "attn.proj": LINEAR,
    "norm2.0": NORM,
    "mlp.0.fc1": LINEAR,
    "mlp.0.fc2": LINEAR,
}


def their_names() -> list[str]:
    """What Pointcept calls the parameters and buffers of the small network of the tests."""
    parts = {"embedding.stem.conv": ("weight",), "embedding.stem.norm": BATCH_NORM}
    for stage in (1, 2):
        parts[f"enc.enc{stage}.down.proj"] = LINEAR
        parts[f"enc.enc{stage}.down.norm.0"] = BATCH_NORM
    for stage, part in product((0, 1), ("proj", "proj_skip")):
        parts[f"dec.dec{stage}.up.{part}.0"] = LINEAR
        parts[f"dec.dec{stage}.up.{part}.1"] = BATCH_NORM
    for side, depths in (("enc", (1, 2, 1)), ("dec", (1, 1))):
        for stage, depth in enumerate(depths):
            for block, (part, names) in product(range(depth), BLOCK.items()):
                parts[f"{side}.{side}{stage}.block{block}.{part}"] = names
    names = [f"backbone.{part}.{name}" for part, own in parts.items() for name in own]
    return [*names, "seg_head.weight", "seg_head.bias"]


def test_every_name_has_its_place_and_no_place_is_left_over():
    net = small_net()
    assert sorted(map(checkpoint.our_name, their_names())) == sorted(net.state_dict())


def pointcepts_own() -> tuple[Batch, dict[str, Tensor]]:
    """Input of a stored run of the reference, and its weights."""
    given = stored("ptv3_network")
    state = {key[6:]: value for key, value in given.items() if key.startswith("state.")}
    return batch_of(given["grid_coord"], given["feat"], given["scene_sizes"]), state


SIZES = {
    "encoder_channels": [16, 16, 32],
    "encoder_heads": [1, 1, 2],
    "decoder_channels": [16, 16],
    "decoder_heads": [1, 1],
    "relative_positions": True,
}


def test_a_checkpoint_of_pointcept_predicts_as_it_does_there():
    batch, state = pointcepts_own()
    net = small_net(**SIZES, skip_context=True).eval()
    checkpoint.load(net, state)
    given = stored("ptv3_network")
    scores = net(batch, draws(int(given["seed"])))
    torch.testing.assert_close(scores, given["scores"], atol=2e-5, rtol=0)


def test_the_published_slip_in_the_decoder_is_an_option():
    """The sum of both sides in the convolution makes another network of the same weights."""
    batch, state = pointcepts_own()
    net = small_net(**SIZES).eval()
    checkpoint.load(net, state)
    given = stored("ptv3_network")
    scores = net(batch, draws(int(given["seed"])))
    assert (scores - given["scores"]).abs().max() > 0.5


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_checkpoint_is_read_and_predicts_as_it_did(prefix, tmp_path: Path):
    trained, fresh = small_net(seed=1).eval(), small_net(seed=2).eval()
    state = {
        f"{prefix}{name}": trained.state_dict()[checkpoint.our_name(name)] for name in their_names()
    }
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "model_best.pth")
    checkpoint.load(fresh, checkpoint.read(tmp_path / "model_best.pth"))
    batch = scenes(60)
    assert torch.equal(fresh(batch, draws()), trained(batch, draws()))


def test_relative_positions_are_read():
    assert (
        checkpoint.our_name("backbone.enc.enc3.block5.attn.rpe.rpe_table")
        == "encoder_blocks.3.5.attention.positions.table"
    )


@pytest.mark.parametrize(
    "name", ["backbone.enc.enc0.block0.norm1.norm.0.weight", "backbone.proj.weight", "head.weight"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="PDNorm"):
        checkpoint.our_name(name)


def test_other_sizes_are_refused():
    ours = small_net().state_dict()
    state = {name: ours[checkpoint.our_name(name)] for name in their_names()}
    with pytest.raises(ValueError, match="another network"):
        checkpoint.load(small_net(mlp_ratio=2), state)


def test_a_file_with_more_than_weights_is_not_unpickled(tmp_path: Path):
    path = tmp_path / "model_best.pth"
    torch.save({"state_dict": {}, "path": Path("anywhere")}, path)
    with pytest.raises(ValueError, match="save its 'state_dict' alone"):
        checkpoint.read(path)


def test_a_file_without_weights_is_refused(tmp_path: Path):
    torch.save([1, 2], tmp_path / "model_best.pth")
    with pytest.raises(ValueError, match="no checkpoint of Pointcept"):
        checkpoint.read(tmp_path / "model_best.pth")
