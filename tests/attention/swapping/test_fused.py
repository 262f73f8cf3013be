"""Attention of timm's form, on a stand-in with its names, and on timm where it is installed."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attention
import attention.tags
from attention import UnsupportedError, swap
from tests.attention.swapping.models import HEADS, WIDTH, shake, tokens

EXACT = {"atol": 1e-6, "rtol": 1e-6}


class Attention(nn.Module):
    """The names and the computation of timm's `Attention`."""

    def __init__(self, dim: int = WIDTH, *, norm: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.head_dim = dim // HEADS
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.q_norm = nn.LayerNorm(self.head_dim) if norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if norm else nn.Identity()
        self.attn_drop = nn.Dropout(0.0)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.0)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(
            self.q_norm(q), self.k_norm(k), v, attn_mask, scale=self.scale, is_causal=is_causal
        )
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))


class Older(nn.Module):
    """Without the parts that came later, and with a scale of its own."""

    def __init__(self, scale: float = 0.2) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, scale
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> Any:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        weights = (q @ k.mT * self.scale).softmax(-1)
        return self.proj((self.attn_drop(weights) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention(**kwargs)

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        return x + self.attn(self.norm1(x), **masks)


class Vit(nn.Module):
    """A stack of them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**kwargs) for _ in range(3))

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        for block in self.blocks:
            x = block(x, **masks)
        return x


@pytest.fixture
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def scale_keys(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[0].endswith("qkv"):
                parameter[WIDTH : 2 * WIDTH].mul_(7.0)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("make", [Vit, Older, lambda: Vit(bias=False)])
def test_the_properties_of_a_swap(make: Any) -> None:
    model, x = shake(make()), tokens()
    original, before, text = model(x), copy.deepcopy(model.state_dict()), repr(model)
    report = swap(model, "standard")
    torch.testing.assert_close(model(x), original, **EXACT)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    report.undo()
    report = swap(model, "quest")
    expected = model(x)
    assert not torch.allclose(expected, original, atol=1e-3)
    scale_keys(model)
    torch.testing.assert_close(model(x), expected, **EXACT)
    model.load_state_dict(before)
    report.undo()
    assert torch.equal(model(x), original)
    assert repr(model) == text
    swap(model, "qknorm_hs")
    twin, file = copy.deepcopy(model), io.BytesIO()
    assert torch.equal(twin(x), model(x))
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file))
    assert torch.equal(twin(x), model(x))
    model(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.slow
def test_a_compiled_model_computes_the_same() -> None:
    model = shake(Vit())
    swap(model, "quest")
    expected = model(tokens())
    model.compile(backend="aot_eager")
    torch.testing.assert_close(model(tokens()), expected, **EXACT)


def test_the_report_names_kind_and_layers() -> None:
    report = swap(Vit(), "quest")
    first = report.replaced[0]
    assert (first.name, first.width, first.num_layers) == ("blocks.0.attn", "2 heads of 8", 3)
    assert first.kind.endswith("test_fused.Attention")


@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
        {"attn_mask": torch.linspace(-1, 1, 25).view(5, 5)},
        {"attn_mask": (torch.arange(3 * HEADS * 25) % 3 > 0).view(3, HEADS, 5, 5)},
        {"is_causal": True},
    ],
)
def test_masks_mean_what_they_did(masks: dict[str, Any]) -> None:
    model = shake(Vit())
    expected = model(tokens(), **masks)
    swap(model, "standard")
    torch.testing.assert_close(model(tokens(), **masks), expected, **EXACT)


def test_normalised_queries_and_keys_are_refused_kept_or_replaced() -> None:
    model = shake(Vit(norm=True))
    expected = model(tokens())
    with pytest.raises(UnsupportedError, match=r"normalised queries and keys \(q_norm, k_norm\)"):
        swap(model, "standard")
    report = swap(model, "standard", own="keep")
    torch.testing.assert_close(model(tokens()), expected, **EXACT)
    report.undo()
    swap(model, "standard", own="replace")
    plain = Vit().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(tokens()), plain(tokens()), **EXACT)


@pytest.mark.parametrize("name", ["gated", "sigma_reparam", "qk_clip", "value_residual"])
def test_variants_with_needs_are_served(name: str) -> None:
    model = shake(Vit())
    expected = model(tokens())
    swap(model, name)
    out = model.train()(tokens())
    attention.after_step(model)
    if name in ("sigma_reparam", "qk_clip"):
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    else:
        assert not torch.allclose(out, expected, atol=1e-3)
    tags = attention.tags.tag_of(model)
    assert tags["blocks.0.attn.qkv.weight"] == "qkv"


def test_a_metric_of_all_tokens_is_refused_under_a_mask() -> None:
    model = Vit()
    swap(model, "elliptical")
    model(tokens())
    with pytest.raises(ValueError, match="a mask may hide keys"):
        model(tokens(), is_causal=True)


class WithMaps(Older):
    """Hands out its weights, as DINO does."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class Cosine(Older):
    """The same parts, another computation."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        return self.proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class AttentionWithBias(Older):
    """A parameter that the parts do not explain."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_table = nn.Parameter(torch.zeros(9))


@pytest.mark.parametrize("kind", [WithMaps, Cosine, AttentionWithBias])
def test_the_same_parts_with_another_computation_are_not_taken(kind: type[Older]) -> None:
    module = kind()
    expected = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match="could be replaced"):
        swap(module, "quest")
    assert type(module) is kind
    assert module.state_dict().keys() == expected.keys()


def test_looking_at_a_model_leaves_no_trace() -> None:
    model = Vit()
    model.blocks[0].attn.proj_drop.eval()
    modes = [module.training for module in model.modules()]
    before = torch.random.get_rng_state()
    swap(model, "quest").undo()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes


class Wrapper(nn.Module):
    """As mmcv's, it asks for the weights and takes the output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, query: Tensor) -> Tensor:
        x = query.transpose(0, 1)
        return query + self.attn(query=x, key=x, value=x)[0].transpose(0, 1)


def test_a_wrapper_of_mmcv_computes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrapper, "__module__", "mmcv.cnn.bricks.transformer")
    model = shake(nn.Sequential(Wrapper(), Wrapper()))
    expected = model(tokens())
    report = swap(model, "standard")
    assert [each.name for each in report.replaced] == ["0.attn", "1.attn"]
    calls: list[Any] = []
    for wrapper in model:
        monkeypatch.setattr(wrapper.attn.core, "probabilities", calls.append)
    torch.testing.assert_close(model(tokens()), expected, **EXACT)
    assert not calls


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_a_model_of_timm(name: str) -> None:
    timm = pytest.importorskip("timm", reason="needs timm, which needs torchvision")
    model = timm.create_model(name, img_size=32, num_classes=3).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        report = swap(model, "standard")
        assert len(report.replaced) == 12
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
        report.undo()
        assert torch.equal(model(x), expected)
        swap(model, "quest")
        expected = model(x)
        for block in model.blocks:
            for parameter in block.attn.qkv.parameters():
                parameter[192:384].mul_(7.0)
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


def test_a_model_of_timm_with_normalised_queries_and_keys() -> None:
    timm = pytest.importorskip("timm", reason="needs timm, which needs torchvision")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, qk_norm=True).eval()
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(UnsupportedError, match=r"normalised queries and keys \(q_norm, k_norm\)"):
        swap(model, "quest")
    with torch.no_grad():
        expected = model(x)
        swap(model, "standard", own="keep")
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


def test_a_model_of_mmsegmentation() -> None:
    mmseg = pytest.importorskip("mmseg.models", reason="needs the extra mmseg")
    model = mmseg.VisionTransformer(img_size=(32, 32), embed_dims=32, num_layers=2, num_heads=4)
    shake(model)
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)[0]
        report = swap(model, "standard")
        assert [each.name for each in report.replaced] == [
            "layers.0.attn.attn",
            "layers.1.attn.attn",
        ]
        torch.testing.assert_close(model(x)[0], expected, atol=1e-5, rtol=1e-5)
        report.undo()
        assert torch.equal(model(x)[0], expected)
        swap(model, "quest")
        expected = model(x)[0]
        for layer in model.layers:
            layer.attn.attn.in_proj_weight[32:64].mul_(7.0)
            layer.attn.attn.in_proj_bias[32:64].mul_(7.0)
        torch.testing.assert_close(model(x)[0], expected, atol=1e-5, rtol=1e-5)
