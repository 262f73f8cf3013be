"""Choosing, reporting and refusing; the layers of this package; several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attention import AttentionCore, AttentionFactory, MultiHeadAttention, after_step, swap
from tests.attention.swapping.models import (
    HEADS,
    TOKENS,
    WIDTH,
    bare,
    encoder,
    gps,
    tokens,
    transformer,
)


class OwnAttention(nn.Module):
    """One that nobody knows."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


class Block(nn.Module):
    """The same under a name that does not tell."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


class WindowMSA(nn.Module):
    """As Swin Transformer's is called in mmsegmentation, which computes it by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


def half_known() -> nn.ModuleDict:
    return nn.ModuleDict({"known": bare()[0], "own": OwnAttention()})


def test_the_report_reads() -> None:
    model = transformer().model
    report = swap(
        model, "qknorm_hs", options={"max_scale": 50.0}, where=lambda name, _: "encoder" in name
    )
    assert str(report).splitlines() == [
        "qknorm_hs with {'max_scale': 50.0} in 2 of 6 attentions",
        "  encoder.layers.0.self_attn  torch.nn.MultiheadAttention  2 heads of 8  layer 1 of 2"
        "  +2 parameters",
        "  encoder.layers.1.self_attn  torch.nn.MultiheadAttention  2 heads of 8  layer 2 of 2"
        "  +2 parameters",
        "left as they were:",
        *(
            f"  decoder.layers.{layer}.{name:14}  torch.nn.MultiheadAttention  left out by where"
            for layer in (0, 1)
            for name in ("self_attn", "multihead_attn")
        ),
        "note: the variant brings parameters; make the optimizer after the swap",
    ]
    assert repr(report) == "SwapReport('qknorm_hs', 2 replaced, 4 left)"
    report.undo()
    assert str(report).startswith("qknorm_hs with {'max_scale': 50.0} in 2 of 6 attentions, undone")


def test_the_model_itself_can_be_the_attention() -> None:
    module, run = bare()
    report = swap(module, "quest")
    assert [each.name for each in report.replaced] == [""]
    assert "(the model itself)" in str(report)
    assert run().shape == (3, TOKENS, WIDTH)


def test_where_chooses_by_name_and_module() -> None:
    model = encoder()[0]
    report = swap(model, "quest", where=lambda name, module: name.endswith("1.self_attn"))
    assert [each.name for each in report.replaced] == ["layers.1.self_attn"]
    assert [each.name for each in report.left] == ["layers.0.self_attn", "layers.2.self_attn"]
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention


def test_layers_that_follow_one_another_are_counted_in_their_order() -> None:
    layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS) for _ in range(11))
    report = swap(layers, "quest", where=lambda name, _: name != "3")
    assert {each.name: each.layer for each in report.replaced}["10"] == 9
    assert {each.num_layers for each in report.replaced} == {10}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "Linear has no attention that could be replaced; known are"),
        (OwnAttention(), "OwnAttention: unknown attention"),
        (Block(), "Block: unknown attention"),
        (WindowMSA(), "WindowMSA: unknown attention"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_finding_nothing_is_an_error(model: nn.Module, message: str, strict: bool) -> None:
    with pytest.raises(ValueError, match=message):
        swap(model, "quest", strict=strict)


def test_leaving_out_everything_is_an_error() -> None:
    with pytest.raises(ValueError, match="where= leaves out all 3"):
        swap(encoder()[0], "quest", where=lambda *_: False)


def test_an_unknown_attention_is_an_error_unless_told_otherwise() -> None:
    model = half_known()
    with pytest.raises(ValueError, match=r"^own is .*OwnAttention: unknown.*strict=False"):
        swap(model, "quest")
    assert type(model["known"]) is nn.MultiheadAttention
    report = swap(model, "quest", strict=False)
    assert [each.name for each in report.left] == ["own"]
    report.undo()
    report = swap(model, "quest", where=lambda name, _: name != "own")
    assert [each.reason for each in report.left] == ["unknown attention"]


def test_a_subclass_with_a_forward_of_its_own_is_unknown() -> None:
    class Subclass(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, x, x)[0] * 2

    class Harmless(nn.MultiheadAttention):
        pass

    with pytest.raises(ValueError, match="unknown attention"):
        swap(Subclass(WIDTH, HEADS), "quest")
    assert swap(Harmless(WIDTH, HEADS), "quest").replaced


def test_another_kind_of_global_attention_in_a_graph_is_named() -> None:
    from torch_geometric.nn import GPSConv

    with pytest.raises(ValueError, match="PerformerAttention: unknown attention"):
        swap(GPSConv(WIDTH, None, HEADS, attn_type="performer"), "quest")


def test_a_swapped_model_is_not_swapped_again() -> None:
    model, run = encoder()
    swap(model, "quest")
    expected = run()
    with pytest.raises(ValueError, match=r"swapped before; call undo"):
        swap(model, "qnorm")
    assert torch.equal(run(), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "qest"}, "did you mean 'quest'"),
        ({"variant": "quest", "options": {"cap": 1.0}}, "option 'cap'"),
        ({"variant": "quest", "own": "drop"}, "own='drop' is unknown; allowed: refuse, keep"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swap(encoder()[0], **arguments)


def test_a_swap_that_fails_half_way_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attention.swapping.multihead import MultiheadSite

    model, run = encoder()
    expected, enter = run(), MultiheadSite.enter

    def failing(site: MultiheadSite) -> None:
        if site.name == "layers.2.self_attn":
            raise RuntimeError("no")
        enter(site)

    monkeypatch.setattr(MultiheadSite, "enter", failing)
    with pytest.raises(RuntimeError, match="no"):
        swap(model, "quest")
    assert torch.equal(run(), expected)
    assert all(type(layer.self_attn) is nn.MultiheadAttention for layer in model.layers)


def test_a_shared_layer_is_swapped_once() -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    assert len(swap(nn.ModuleList([layer, layer]), "quest").replaced) == 1


def test_an_optimizer_that_was_made_before_goes_on() -> None:
    model, run = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swap(model, "quest")
    before = run()
    before.square().sum().backward()
    optimizer.step()
    assert not torch.allclose(run(), before, atol=1e-3)


def test_new_parameters_are_of_the_dtype_of_the_layer() -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.bfloat16)
    swap(module, "qknorm_hs")
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


class Ours(nn.Module):
    """Two layers of this package and a core between projections of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MultiHeadAttention(WIDTH, HEADS, projection=projection)
            for projection in ("separate", "fused")
        )
        self.core = AttentionCore(HEADS, WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.core(q, q, q)


@pytest.mark.parametrize("name", ["standard", "quest", "qknorm_hs", "sink"])
def test_layers_of_this_package_become_what_they_would_have_been_built_as(name: str) -> None:
    model, x = Ours(), tokens()
    expected, kinds = model(x), [type(module) for module in model.modules()]
    report = swap(model, name)
    assert [each.name for each in report.replaced] == ["layers.0.core", "layers.1.core", "core"]
    assert model.core.name == name
    built = Ours()
    for index in range(2):
        kind = ("separate", "fused")[index]
        built.layers[index] = MultiHeadAttention(WIDTH, HEADS, variant=name, projection=kind)
    built.core = AttentionCore(HEADS, WIDTH // HEADS, variant=name)
    built.load_state_dict(model.state_dict())
    assert torch.equal(model(x), built(x))
    report.undo()
    assert torch.equal(model(x), expected)
    assert [type(module) for module in model.modules()] == kinds


def test_layers_of_this_package_take_variants_that_know_the_weights() -> None:
    model, x = nn.Sequential(MultiHeadAttention(WIDTH, HEADS)), tokens()
    expected = model(x)
    report = swap(model, "sigma_reparam")
    torch.testing.assert_close(model(x), expected)
    with torch.no_grad():
        model[0].core.variant.gain["v"].mul_(2.0)
    assert not torch.allclose(model(x), expected, atol=1e-3)
    after_step(model)
    report.undo()
    assert torch.equal(model(x), expected)


def test_a_core_without_weights_refuses_what_needs_them() -> None:
    with pytest.raises(ValueError, match=r"core: attention='qk_clip' needs the weights"):
        swap(Ours(), "qk_clip", where=lambda name, _: name == "core")


@pytest.mark.parametrize("name", ["elliptical_quest", "value_residual", "gated"])
def test_models_of_the_suite_swap(name: str) -> None:
    from domains.timeseries.config import ModelConfig
    from domains.timeseries.model import TimeSeriesTransformer

    def net(variant: str) -> nn.Module:
        torch.manual_seed(0)
        config = ModelConfig(width=WIDTH, heads=HEADS, layers=2, feedforward=32)
        sizes = {"channels": 3, "classes": 4, "length": 11, "mask_padding": False}
        return TimeSeriesTransformer(config, AttentionFactory(variant), **sizes).eval()

    model, built, x = net("standard"), net(name), torch.randn(2, 11, 3)
    swap(model, name)
    model.load_state_dict(built.state_dict())
    assert torch.equal(model(x, None), built(x, None))
    if name != "gated":
        with pytest.raises(ValueError, match="choose all 2 that follow one another, not 1"):
            swap(net("standard"), name, where=lambda path, _: "layers.1" in path)


def test_importing_the_package_imports_none_of_the_libraries() -> None:
    code = (
        "import sys, attention, attention.swapping;"
        "found = {'transformers', 'timm', 'torch_geometric', 'mmcv', 'mmseg'} & set(sys.modules);"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_swapping_other_models_imports_none_either() -> None:
    code = (
        "import sys, torch, attention;"
        "attention.swap(torch.nn.MultiheadAttention(8, 2), 'quest');"
        "sys.exit('transformers' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def _train(rank: int, file: str) -> None:
    """Two steps of two processes, each with a part of the batch, against one with all of it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    outputs = []
    for distributed in (True, False):
        torch.manual_seed(0)
        model = encoder()[0]
        swap(model, "qknorm_hs")
        x = torch.randn(4, TOKENS, WIDTH)
        net = nn.parallel.DistributedDataParallel(model) if distributed else model
        part = x[rank::2] if distributed else x
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(part).square().mean().backward()
            optimizer.step()
        outputs.append(dict(model.named_parameters()))
    assert any("log_scale" in name for name in outputs[0])
    for name, parameter in outputs[0].items():
        torch.testing.assert_close(parameter, outputs[1][name], atol=1e-5, rtol=1e-4)
    refused = nn.parallel.DistributedDataParallel(gps()[0])
    with pytest.raises(ValueError, match="swap\\(\\) the model first, then wrap it"):
        swap(refused, "qknorm_hs")
    swap(refused, "quest")
    torch.distributed.destroy_process_group()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(
        _train, args=(str(tmp_path / "store"),), nprocs=2, start_method="fork"
    )
