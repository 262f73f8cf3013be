"""Encoder, decoders and their sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attention import AttentionFactory, registry
from attention.tags import tag_of
from domains.common.dropout import DropPath
from domains.common.vit import BlockSizes, VisionTransformer
from domains.segmentation.config import ModelConfig
from domains.segmentation.decoders import decoder

from .networks import config, network

STANDARD = AttentionFactory("standard")
SIZES = {"ti": (192, 3, 768), "s": (384, 6, 1536)}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("size", "expected"), [("ti", 5_876_392), ("s", 22_368_616)])
def test_the_encoder_has_as_many_parameters_as_published(size: str, expected: int) -> None:
    """With the classifier of 1000 classes, which Segmenter builds and does not use."""
    width, heads, feedforward = SIZES[size]
    sizes = BlockSizes(layers=12, width=width, heads=heads, feedforward=feedforward)
    vit = VisionTransformer(sizes, STANDARD, image_size=(512, 512), patch=16, classes=1000)
    assert count(vit) == expected


@pytest.mark.parametrize(("size", "expected"), [("ti", 1_029_996), ("s", 4_050_348)])
def test_the_decoder_has_as_many_parameters_as_published(size: str, expected: int) -> None:
    width, heads, feedforward = SIZES[size]
    model = ModelConfig(width=width, heads=heads, feedforward=feedforward)
    assert count(decoder(model, STANDARD, 150)) == expected


@pytest.mark.parametrize("variant", registry.names())
def test_every_variant_reaches_all_layers_of_both_stacks(variant: str) -> None:
    net = network(variant=variant)
    cores = [module.name for name, module in net.named_modules() if name.endswith("attn.core")]
    assert cores == [variant] * 4
    net.train()
    net(torch.randn(2, 3, 32, 32)).square().mean().backward()
    unmoved = [name for name, p in net.named_parameters() if p.grad is None]
    assert not unmoved


def test_the_decoder_can_keep_standard_attention() -> None:
    net = network(config(decoder_attention="standard"), "quest")
    cores = {
        name: module.name for name, module in net.named_modules() if name.endswith("attn.core")
    }
    assert {v for k, v in cores.items() if k.startswith("encoder")} == {"quest"}
    assert {v for k, v in cores.items() if k.startswith("decoder")} == {"standard"}


def test_quest_changes_the_result_and_standard_weights_stay() -> None:
    plain, quest = network(), network(variant="quest")
    for (name, a), (_, b) in zip(plain.named_parameters(), quest.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    image = torch.randn(1, 3, 32, 32)
    assert not torch.allclose(plain(image), quest(image), atol=1e-4)


def test_the_linear_decoder_is_one_map() -> None:
    net = network(config(decoder="linear"))
    assert count(net.decoder) == 24 * 5 + 5
    tokens = net.encoder(image := torch.randn(1, 3, 32, 32))[:, 1:]
    expected = net.decoder.head(tokens).transpose(1, 2).view(1, 5, 4, 4)
    torch.testing.assert_close(net(image), expected)


def test_without_a_class_token_there_is_one_token_less() -> None:
    net = network(config(class_token=False))
    assert net.encoder.pos_embed.shape[1] == 16
    assert net(torch.randn(1, 3, 32, 24)).shape == (1, 5, 4, 3)


def test_layer_scale_multiplies_what_a_layer_adds() -> None:
    bare, scaled = network(), network(config(layer_scale=0.0))
    image = torch.randn(1, 3, 32, 32)
    embedded = bare.encoder.patch_embed(image) + bare.encoder.pos_embed[:, 1:]
    torch.testing.assert_close(scaled.encoder(image)[:, 1:], bare.encoder.norm(embedded))
    names = [name for name, _ in scaled.encoder.named_parameters() if name.endswith("gamma")]
    assert names == [f"blocks.{i}.ls{j}.gamma" for i in (0, 1) for j in (1, 2)]


def test_stochastic_depth_rises_linearly_and_keeps_the_mean() -> None:
    net = network(config(layers=3, drop_path=0.4))
    assert [layer.drop_path.rate for layer in net.encoder.blocks] == [0.0, 0.2, 0.4]
    path = DropPath(0.25).train()
    dropped = path(torch.ones(20_000, 2, 3))
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(dropped.amax((1, 2)), dropped.amin((1, 2))), "a picture at a time"
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(path.eval()(torch.ones(2, 2, 2)), torch.ones(2, 2, 2))


def test_dropout_of_the_decoder_acts_while_training_only() -> None:
    net = network(config(decoder_dropout=0.5))
    image = torch.randn(1, 3, 32, 32)
    assert torch.equal(net(image), net(image))
    net.train()
    assert not torch.equal(net(image), net(image))


def test_a_crop_of_no_whole_number_of_patches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe\.crop=30 must be a multiple of model\.patch=8"):
        network(crop=30)


def test_queries_keys_and_values_are_one_weight_and_tagged_so() -> None:
    tags = tag_of(network())
    assert tags["encoder.blocks.0.attn.qkv.weight"] == "qkv"
    assert tags["decoder.blocks.1.attn.proj.bias"] == "ov"
