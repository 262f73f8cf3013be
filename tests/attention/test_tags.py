"""Tags of parameters in whole models."""

from __future__ import annotations

import pytest
from torch import nn

from attention import MultiHeadAttention
from attention.tags import tag_of


def test_tags_by_qualified_name() -> None:
    model = nn.ModuleDict(
        {
            "a": MultiHeadAttention(8, 2, variant="qknorm_hs", qkv_bias=False),
            "b": MultiHeadAttention(8, 2, variant="qknorm_ln", projection="fused"),
            "head": nn.Linear(8, 8),
        }
    )
    assert tag_of(model) == {
        "a.q_proj.weight": "qk",
        "a.k_proj.weight": "qk",
        "a.v_proj.weight": "ov",
        "a.out_proj.weight": "ov",
        "a.out_proj.bias": "ov",
        "a.core.variant.log_scale": "scale",
        "b.qkv_proj.weight": "qkv",
        "b.qkv_proj.bias": "qkv",
        "b.out_proj.weight": "ov",
        "b.out_proj.bias": "ov",
        "b.core.variant.q_norm.weight": "scale",
        "b.core.variant.q_norm.bias": "scale",
        "b.core.variant.k_norm.weight": "scale",
        "b.core.variant.k_norm.bias": "scale",
    }


def test_shared_and_reparametrised_weights_keep_their_tags() -> None:
    layer = MultiHeadAttention(8, 2)
    nn.utils.parametrizations.weight_norm(layer.q_proj)
    model = nn.ModuleList([layer, layer, MultiHeadAttention(8, 2)])
    model[2].v_proj.weight = layer.v_proj.weight
    tags = tag_of(model)
    assert tags["0.q_proj.parametrizations.weight.original1"] == "qk"
    assert tags["1.k_proj.weight"] == "qk"
    assert tags["2.v_proj.weight"] == "ov"


class Own(nn.Module):
    """A model with projections of its own."""

    def __init__(self, tags: dict[str, str]) -> None:
        super().__init__()
        self.relative = nn.Linear(2, 2)
        self.tags = tags

    def parameter_tags(self) -> dict[str, str]:
        return self.tags


def test_models_tag_their_own_projections() -> None:
    assert tag_of(nn.Sequential(Own({"relative.weight": "qk"}))) == {"0.relative.weight": "qk"}
    for wrong in ({"relative.wait": "qk"}, {"relative.weight": "query"}):
        with pytest.raises(ValueError, match="relative"):
            tag_of(Own(wrong))
