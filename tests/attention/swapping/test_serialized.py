"""The serialized attention of Point Transformer V3, on a stand-in with Pointcept's names.

What holds for all models (test_properties.py) holds for it, too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attention
import attention.tags
from attention import UnsupportedError, swap, telemetry
from tests.attention.swapping import points as stand_in
from tests.attention.swapping.models import shake
from tests.attention.swapping.points import Cloud, Points, SerializedAttention, points

VECTORS = Path(__file__).parents[2] / "vectors" / "ptv3_attention.npz"
EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(scope="module")
def stored() -> dict[str, Tensor]:
    with np.load(VECTORS, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def layer_of(stored: dict[str, Tensor], **kwargs: Any) -> SerializedAttention:
    """A layer with stored weights."""
    layer = SerializedAttention(32, 2, 16, **kwargs).eval()
    names = ("qkv.weight", "qkv.bias", "proj.weight", "proj.bias")
    weights = {name: stored[name.replace(".", "_")] for name in names}
    if layer.rpe is not None:
        assert layer.rpe.pos_bnd == stored["rpe_pos_bnd"]
        weights["rpe.rpe_table"] = stored["rpe_table"]
    layer.load_state_dict(weights)
    return layer


def stored_points(stored: dict[str, Tensor], case: str, order: str) -> Points:
    return Points(
        feat=stored[f"{case}_feat"].clone().requires_grad_(),
        grid_coord=stored[f"{case}_grid_coord"],
        offset=stored[f"{case}_scene_sizes"].cumsum(0),
        serialized_order=stored[f"{case}_{order}_serialized_order"][None],
        serialized_inverse=stored[f"{case}_{order}_serialized_inverse"][None],
    )


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["plain", "rpe"])
@pytest.mark.parametrize("order", ["z", "hilbert"])
@pytest.mark.parametrize("case", ["a", "b"])
def test_it_is_the_attention_of_pointcept(
    stored: dict[str, Tensor], case: str, order: str, kind: str, swapped: bool
) -> None:
    layer = layer_of(stored, enable_rpe=kind == "rpe")
    if swapped:
        swap(layer, "standard")
    point = stored_points(stored, case, order)
    feat = point.feat
    out = layer(point).feat
    assert layer.patch_size == stored[f"{case}_patch_size_used"]
    (grad,) = torch.autograd.grad((out * stored[f"{case}_grad_output"]).sum(), feat)
    name = f"{case}_{order}_{kind}"
    torch.testing.assert_close(out, stored[f"{name}_output"], atol=3e-5, rtol=0.0)
    torch.testing.assert_close(grad, stored[f"{name}_grad_feat"], atol=6e-5, rtol=0.0)


class Half(SerializedAttention):
    """Of an older commit."""

    half = torch.float16


@pytest.mark.parametrize("kind", [SerializedAttention, Half])
def test_the_flash_path_keeps_its_dtype_and_all_properties(
    kind: type[SerializedAttention],
) -> None:
    model = shake(Cloud(kind, enable_flash=True))
    expected, before, text = model(points()).feat, copy.deepcopy(model.state_dict()), repr(model)
    report = swap(model, "standard")
    assert torch.equal(model(points()).feat, expected)
    report.undo()
    report = swap(model, "quest")
    assert {block.flash_dtype for block in model.blocks} == {kind.half}
    stand_in.calls.clear()
    out = model(points()).feat
    assert [call["softmax_scale"] for call in stand_in.calls] == [1.0, 1.0]
    assert not torch.allclose(out, expected, atol=1e-2)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(points()).feat, out)
    with torch.no_grad():
        for block in model.blocks:
            for parameter in block.qkv.parameters():
                parameter[16:32].mul_(7.0)
    # A key may round to the other of two numbers of half precision.
    torch.testing.assert_close(model(points()).feat, out, atol=1e-2, rtol=0.0)
    model.load_state_dict(before)
    assert torch.equal(model(points()).feat, out)
    report.undo()
    assert torch.equal(model(points()).feat, expected)
    assert repr(model) == text
    assert list(model.state_dict()) == list(before)


@pytest.mark.parametrize("variant", ["standard", "quest", "qnorm", "qknorm_ds", "qknorm_hs", "mup"])
def test_both_paths_have_the_same_variant(stored: dict[str, Tensor], variant: str) -> None:
    """Case a has full patches on both; half precision is what they differ by."""
    outs = []
    for flash in (False, True):
        layer = layer_of(stored, enable_flash=flash)
        swap(layer, variant)
        outs.append(layer(stored_points(stored, "a", "z")).feat)
    torch.testing.assert_close(outs[1], outs[0], atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize(
    "variant", ["logn", "softmax1", "softcap", "differential", "gated", "sigma_reparam", "qk_clip"]
)
def test_flash_is_refused_where_a_variant_is_more_than_queries_and_keys(variant: str) -> None:
    model = Cloud(enable_flash=True)
    with pytest.raises(UnsupportedError, match=r"blocks\.0: .*set enable_flash=False in the model"):
        swap(model, variant)
    assert type(model.blocks[0]) is SerializedAttention


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("variant", ["elliptical", "elliptical_quest", "value_residual"])
def test_variants_that_look_at_the_layers_before_are_refused(variant: str, flash: bool) -> None:
    with pytest.raises(UnsupportedError, match="each has its points in another line"):
        swap(Cloud(enable_flash=flash), variant)


@pytest.mark.parametrize("variant", ["gated", "sigma_reparam", "qk_clip"])
def test_variants_with_needs_are_served(variant: str) -> None:
    model = shake(Cloud())
    expected = model(points()).feat
    swap(model, variant)
    out = model.train()(points()).feat
    out.sum().backward()
    attention.after_step(model)
    assert torch.allclose(out, expected, atol=1e-5) == (variant != "gated")
    assert attention.tags.tag_of(model)["blocks.1.qkv.weight"] == "qkv"


@pytest.mark.parametrize("flash", [False, True])
def test_a_scale_of_ones_own_stays(flash: bool) -> None:
    model = shake(Cloud(qk_scale=0.1, enable_flash=flash))
    expected = model(points()).feat
    swap(model, "standard")
    torch.testing.assert_close(model(points()).feat, expected, atol=2e-2 if flash else 1e-6, rtol=0)
    if flash:
        plain = shake(Cloud(enable_flash=True))
        plain.load_state_dict(model.state_dict())
        assert (plain(points()).feat - expected).abs().max() > 0.1


def test_what_is_cast_to_single_precision_is_computed_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[torch.dtype] = []
    core = attention.AttentionCore
    original = core.forward

    def noted(self: Any, q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found.append(q.dtype)
        return original(self, q, *args, **kwargs)

    monkeypatch.setattr(core, "forward", noted)
    for upcast in (False, True):
        layer = SerializedAttention(upcast=upcast).to(torch.bfloat16)
        swap(layer, "quest")
        found.clear()
        given = points()
        given.feat = given.feat.bfloat16()
        assert layer(given).feat.dtype == torch.bfloat16
        assert found == [torch.float32 if upcast else torch.bfloat16]


@pytest.mark.parametrize("flash", [False, True])
def test_dropout_stays_and_is_of_training_alone(flash: bool) -> None:
    layer = SerializedAttention(attn_drop=0.5, enable_flash=flash)
    swap(layer, "quest")
    assert layer.core.dropout == 0.5
    if flash:
        stand_in.calls.clear()
        layer.train()(points())
        layer.eval()(points())
        assert [call["dropout_p"] for call in stand_in.calls] == [0.5, 0.0]
    else:
        outs = [layer.train()(points()).feat for _ in range(2)]
        assert not torch.allclose(*outs)
        assert torch.equal(layer.eval()(points()).feat, layer(points()).feat)


def test_the_report_names_kind_and_heads() -> None:
    report = swap(Cloud(), "quest")
    first = report.replaced[0]
    assert (first.name, first.width, first.num_layers) == ("blocks.0", "2 heads of 8", 2)
    assert first.kind.endswith("points.SerializedAttention")


@pytest.mark.parametrize("flash", [False, True])
def test_looking_at_a_model_leaves_no_trace(flash: bool) -> None:
    model = Cloud(enable_flash=flash)
    model.blocks[0].proj_drop.eval()
    library = stand_in.flash_attn
    modes = [module.training for module in model.modules()]
    sizes = [block.patch_size for block in model.blocks]
    before = torch.random.get_rng_state()
    stand_in.calls.clear()
    swap(model, "quest").undo()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert [block.patch_size for block in model.blocks] == sizes
    assert stand_in.flash_attn is library
    assert not stand_in.calls


class Cosine(SerializedAttention):
    """The same parts, another computation."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        return super().attend(q, k, v, bias)


class OtherInput(SerializedAttention):
    """Gives flash attention something else."""

    def __init__(self) -> None:
        super().__init__(enable_flash=True)

    def forward(self, point: Any) -> Any:
        point.feat = point.feat.sin()
        return super().forward(point)


class Rotated(SerializedAttention):
    """A part that is not known, as the rotary positions of Pointcept's third version."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = nn.Identity()


class Demanding(SerializedAttention):
    """Reads what made-up points do not have."""

    def forward(self, point: Any) -> Any:
        point.feat = point.feat + point.colour
        return super().forward(point)


@pytest.mark.parametrize("kind", [Cosine, OtherInput, Rotated, Demanding])
def test_the_same_names_with_another_computation_are_not_taken(
    kind: type[SerializedAttention],
) -> None:
    layer = kind()
    with pytest.raises(ValueError, match="could be replaced"):
        swap(layer, "quest")
    assert type(layer) is kind


def test_telemetry_sees_the_plain_path_and_is_refused_on_the_other() -> None:
    model = Cloud()
    swap(model, "quest")
    with telemetry.attach(model) as watch:
        model(points())
    assert len(watch.collect()["blocks.1.core"]["max_logit"]) == 2
    model = Cloud(enable_flash=True)
    swap(model, "quest")
    with (
        telemetry.attach(model),
        pytest.raises(ValueError, match="flash attention shows no scores"),
    ):
        model(points())
