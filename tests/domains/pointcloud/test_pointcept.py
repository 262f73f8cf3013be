"""A variant in Pointcept's attention, whose class a stand-in with the same interface plays here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention import AttentionFactory, UnsupportedError
from domains.pointcloud import pointcept
from domains.pointcloud.attention_blocks import RelativePositions
from domains.pointcloud.serialization import patches_of

from .clouds import stored


class StandIn(nn.Module):
    """Attributes and methods of the class that a variant relies on; no attention of its own."""

    def __init__(
        self, *, enable_flash: bool, enable_rpe: bool = False, qk_scale: float | None = None
    ) -> None:
        super().__init__()
        self.channels, self.num_heads, self.order_index = 32, 2, 0
        self.scale = qk_scale or 16**-0.5
        self.enable_flash, self.enable_rpe = enable_flash, enable_rpe
        self.upcast_attention = self.upcast_softmax = False
        self.patch_size = self.patch_size_max = 16
        self.attn_drop = 0.0 if enable_flash else nn.Dropout(0.0)
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.proj_drop = nn.Identity()
        self.table = RelativePositions(2, 16)

    def get_padding_and_inverse(self, point: Any) -> tuple[Tensor, ...]:
        patches = patches_of(point.offset.diff(prepend=torch.zeros(1).long()), self.patch_size)
        return tuple(patches)

    def get_rel_pos(self, point: Any, order: Tensor) -> Tensor:
        return point.grid[order].view(-1, self.patch_size, 3)

    def rpe(self, grid: Tensor) -> Tensor:
        return self.table(grid)


def layer_of(variant: str, **options: Any) -> Any:
    given = stored("ptv3_attention")
    built = pointcept.with_variant(StandIn, AttentionFactory(variant), torch.bfloat16)
    layer = built(**options).eval()
    with torch.no_grad():
        layer.qkv.weight.copy_(given["qkv_weight"])
        layer.qkv.bias.copy_(given["qkv_bias"])
        layer.proj.weight.copy_(given["proj_weight"])
        layer.proj.bias.copy_(given["proj_bias"])
        layer.table.table.copy_(given["rpe_table"])
    return layer


def given_point(case: str) -> Any:
    given = stored("ptv3_attention")
    return SimpleNamespace(
        feat=given[f"{case}_feat"],
        grid=given[f"{case}_grid_coord"],
        offset=given[f"{case}_scene_sizes"].cumsum(0),
        serialized_order=given[f"{case}_hilbert_serialized_order"][None],
        serialized_inverse=given[f"{case}_hilbert_serialized_inverse"][None],
    )


def flash(packed: Tensor, ends: Tensor, **options: Any) -> Tensor:
    """What the library computes, patch by patch."""
    assert packed.dtype == torch.bfloat16
    assert int(ends.diff().max()) <= options["max_seqlen"]
    out = []
    for patch in packed.float().split(ends.diff().tolist()):
        q, k, v = patch.permute(1, 2, 0, 3)
        out.append((q @ k.mT * options["softmax_scale"]).softmax(-1) @ v)
    return torch.cat([part.transpose(0, 1) for part in out]).to(packed.dtype)


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(flash_attn_varlen_qkvpacked_func=flash)
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", library)


@pytest.mark.parametrize("kind", ["plain", "rpe"])
@pytest.mark.parametrize("case", ["a", "b"])
def test_standard_attention_is_that_of_pointcept(case, kind):
    layer = layer_of("standard", enable_flash=False, enable_rpe=kind == "rpe")
    out = layer(given_point(case)).feat
    expected = stored("ptv3_attention")[f"{case}_hilbert_{kind}_output"]
    torch.testing.assert_close(out, expected, atol=3e-5, rtol=0)


@pytest.mark.usefixtures("flash_attn")
@pytest.mark.parametrize("variant", ["standard", "quest", "qnorm", "qknorm_ds", "qknorm_hs"])
def test_both_paths_have_the_same_variant(variant):
    """Case a has full patches on both paths; half precision is what they differ by."""
    point = given_point("a")
    plain = layer_of(variant, enable_flash=False)(given_point("a")).feat
    fast = layer_of(variant, enable_flash=True)(point).feat
    torch.testing.assert_close(fast, plain, atol=5e-2, rtol=5e-2)
    if variant != "standard":
        assert (
            plain - layer_of("standard", enable_flash=False)(given_point("a")).feat
        ).std() > 0.05


@pytest.mark.parametrize("variant", ["elliptical", "value_residual", "gated", "sigma_reparam"])
def test_variants_that_look_elsewhere_are_refused(variant):
    with pytest.raises(UnsupportedError):
        layer_of(variant, enable_flash=False)


@pytest.mark.parametrize("variant", ["logn", "softmax1", "differential", "sigmoid"])
def test_flash_is_refused_where_a_variant_is_more_than_queries_and_keys(variant):
    layer_of(variant, enable_flash=False)(given_point("a"))
    with pytest.raises(UnsupportedError, match="enable_flash=False"):
        layer_of(variant, enable_flash=True)


def test_a_scale_of_ones_own_is_refused():
    with pytest.raises(ValueError, match="qk_scale"):
        layer_of("quest", enable_flash=False, qk_scale=0.1)


def test_a_folder_without_ptv3_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is no checkout of Pointcept"):
        pointcept.install(tmp_path, AttentionFactory("quest"))


def test_a_checkout_that_is_not_known_is_refused(tmp_path: Path):
    path = tmp_path / pointcept.FILE
    path.parent.mkdir(parents=True)
    path.write_text("class SerializedAttention:\n    pass\n")
    with pytest.raises(ValueError, match="none that is known here"):
        pointcept.install(tmp_path, AttentionFactory("quest"))
