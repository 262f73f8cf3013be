"""Models of transformers: the properties of a swap, masks, caches, processes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attention import swap, telemetry
from tests.attention.swapping.hf_models import (
    CASES,
    Case,
    bart,
    bert,
    example,
    ids,
    llama,
    mistral,
    scale_keys,
    transformers,
)

EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def swapped(case: Case, name: str, **arguments: Any) -> Any:
    return swap(case.model, name, example=example(case), **arguments)


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_standard_changes_no_output_and_no_parameter(case: Case) -> None:
    parameters, before = dict(case.model.named_parameters()), states(case.model)
    expected = case.run()
    swapped(case, "standard")
    scale = expected.abs().max().clamp_min(1.0)
    torch.testing.assert_close(case.real(case.run()) / scale, case.real(expected) / scale, **EXACT)
    after = dict(case.model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in after)
    assert all(torch.equal(before[name], tensor) for name, tensor in states(case.model).items())


def test_after_quest_the_scale_of_the_keys_changes_no_output(case: Case) -> None:
    case.model.double()
    inputs = {n: t.double() if t.is_floating_point() else t for n, t in case.inputs.items()}
    case = case._replace(inputs=inputs)
    original = case.run()
    scale_keys(case, 7.0)
    assert not torch.allclose(case.run(), original, atol=1e-3), "the scale matters to the original"
    scale_keys(case, 1 / 7.0)
    swapped(case, "quest")
    expected = case.run()
    assert not torch.allclose(expected, original, atol=1e-3)
    scale_keys(case, 7.0)
    torch.testing.assert_close(case.run(), expected, **EXACT)


def test_undo_restores_the_original_bit_for_bit(case: Case) -> None:
    expected, before, text = case.run(), states(case.model), repr(case.model)
    kinds = [type(module) for module in case.model.modules()]
    name = case.model.config._attn_implementation
    report = swapped(case, "qknorm_hs")
    assert case.model.config._attn_implementation == "attention_swap"
    assert not torch.allclose(case.run(), expected, atol=1e-3)
    report.undo()
    assert case.model.config._attn_implementation == name
    assert torch.equal(case.run(), expected)
    assert repr(case.model) == text
    assert [type(module) for module in case.model.modules()] == kinds
    assert list(case.model.state_dict()) == list(before)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in case.model.modules())


def test_looking_at_a_model_leaves_no_trace(case: Case) -> None:
    case.model.train()
    case.model.get_submodule(next(n for n, _ in case.model.named_modules() if n)).eval()
    modes = [module.training for module in case.model.modules()]
    before = torch.random.get_rng_state()
    report = swapped(case, "quest")
    assert torch.equal(torch.random.get_rng_state(), before)
    report.undo()
    assert [module.training for module in case.model.modules()] == modes


def test_state_dict_loads_both_ways(case: Case) -> None:
    original = states(case.model)
    report = swapped(case, "qknorm_hs")
    learned = [name for name in case.model.state_dict() if name not in original]
    assert len(learned) == len(report.replaced)
    assert all(name.endswith("core.variant.log_scale") for name in learned)
    result = case.model.load_state_dict(original, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (learned, [])
    expected, moved = case.run(), states(case.model)
    report.undo()
    assert case.model.load_state_dict(moved, strict=False).unexpected_keys == learned
    swapped(case, "qknorm_hs")
    case.model.load_state_dict(moved)
    assert torch.equal(case.run(), expected)


def test_a_copy_computes_the_same_and_lives_its_own_life(case: Case) -> None:
    report = swapped(case, "qknorm_hs")
    expected = case.run()
    twin = case._replace(model=copy.deepcopy(case.model))
    report.undo()
    assert torch.equal(twin.run(), expected)
    assert not torch.allclose(case.run(), expected, atol=1e-3)


def test_autocast_and_half_precision_run(case: Case) -> None:
    swapped(case, "quest")
    with torch.autocast("cpu", torch.bfloat16):
        out = case.run()
    assert out.isfinite().all()


def test_every_parameter_gets_a_gradient_and_telemetry_sees_the_layers(case: Case) -> None:
    report = swapped(case, "qknorm_hs")
    with torch.enable_grad(), telemetry.attach(case.model) as watch:
        case.run().square().sum().backward()
    assert len(watch.collect()) == len(report.replaced)
    learned = [p for n, p in case.model.named_parameters() if n.endswith("log_scale")]
    assert learned
    assert all(parameter.grad is not None for parameter in learned)


def explicit_quest(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """QUEST written out, for a module whose masks are always there."""
    groups = query.shape[1] // key.shape[1]
    unit = functional.normalize(key, dim=-1).repeat_interleave(groups, 1)
    logits = (query @ unit.mT).masked_fill(~attention_mask, -1e30)
    return (logits.softmax(-1) @ value.repeat_interleave(groups, 1)).transpose(1, 2), None


@pytest.mark.parametrize("make", [llama, mistral])
def test_quest_is_quest(make: Any) -> None:
    from transformers.masking_utils import sdpa_mask

    case = make()
    transformers.AttentionInterface.register("explicit_quest", explicit_quest)
    transformers.AttentionMaskInterface.register("explicit_quest", sdpa_mask)
    case.model.set_attn_implementation("explicit_quest")
    expected = case.run()
    case.model.set_attn_implementation("sdpa")
    swap(case.model, "quest")
    torch.testing.assert_close(case.real(case.run()), case.real(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [llama, bert])
def test_padded_equals_unpadded(make: Any) -> None:
    case = make()
    swap(case.model, "quest")
    real = case.inputs["attention_mask"][1].bool()
    positions = (case.inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    both = case.run(position_ids=positions)[1, real]
    alone = case.model(case.inputs["input_ids"][1:, real])[0][0]
    torch.testing.assert_close(both, alone, atol=5e-6, rtol=1e-5)


def test_later_tokens_and_those_outside_a_window_are_not_seen() -> None:
    case = mistral()
    swap(case.model, "quest", where=lambda name, _: ".layers.0." in name)
    case.model.model.layers = case.model.model.layers[:1]
    case.model.config.num_hidden_layers = 1
    text = ids()
    expected = case.model(text)[0]
    for changed, seen_by in ((0, range(3)), (3, range(3, 6)), (5, range(5, 6))):
        other = text.clone()
        other[:, changed] += 1
        moved = (case.model(other)[0] - expected).abs().amax((0, 2)) > 1e-6
        assert moved.nonzero().flatten().tolist() == list(seen_by)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["standard", "quest", "qknorm_hs", "sink", "ssmax", "softcap"])
@pytest.mark.parametrize("make", [llama, bart])
def test_generation_with_a_cache_equals_calls_without(name: str, cache: str, make: Any) -> None:
    case = make()
    report = swap(case.model, name)
    inputs = {name: case.inputs[name] for name in ("input_ids", "attention_mask")}
    made = case.model.generate(
        **inputs, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=1,
        cache_implementation=cache, output_logits=True, return_dict_in_generate=True,
        disable_compile=True,
    )  # fmt: skip
    assert len(report.replaced) == (2 if make is llama else 6)
    if make is bart:
        logits = case.model(**inputs, decoder_input_ids=made.sequences[:, :-1], use_cache=False)[0]
        start = 0
    else:
        mask = functional.pad(inputs["attention_mask"], (0, 4), value=1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = case.model(
            made.sequences[:, :-1], attention_mask=mask, position_ids=positions, use_cache=False
        )[0]
        start = 5
    cached = torch.stack(made.logits, 1)
    assert cached.shape[1] == logits.shape[1] - start == 5
    torch.testing.assert_close(cached, logits[:, start:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["standard", "quest", "sigmoid"])
def test_the_first_call_of_a_static_cache_sees_no_room_of_it(name: str) -> None:
    case = llama()
    swap(case.model, name)
    made = case.model.generate(
        ids(), max_new_tokens=3, min_new_tokens=3, do_sample=False, cache_implementation="static",
        output_logits=True, return_dict_in_generate=True, disable_compile=True,
    )  # fmt: skip
    logits = case.model(made.sequences[:, :-1], use_cache=False)[0][:, 5:]
    torch.testing.assert_close(torch.stack(made.logits, 1), logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"), [("elliptical", {"causal": True}), ("value_residual", {})]
)
def test_variants_that_look_at_the_layers_before_in_a_decoder(
    name: str, options: dict[str, Any]
) -> None:
    case = llama()
    expected = case.run()
    swap(case.model, name, options=options)
    text = ids()
    assert not torch.allclose(case.run(), expected, atol=1e-4)
    whole = case.model(text, use_cache=False)[0]
    first = case.model(text[:, :3], use_cache=True)
    second = case.model(text[:, 3:4], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(second[0], whole[:, 3:4], atol=1e-5, rtol=1e-4)
    other = text.clone()
    other[:, 4:] += 1
    torch.testing.assert_close(case.model(other)[0][:, :4], whole[:, :4], atol=1e-5, rtol=1e-4)


def test_a_metric_of_tokens_leaves_out_padding_and_refuses_what_it_cannot_place() -> None:
    case = llama()
    swap(case.model, "elliptical", options={"causal": True})
    real = case.inputs["attention_mask"][1].bool()
    positions = (case.inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    alone = case.model(case.inputs["input_ids"][1:, real])[0][0]
    both = case.run(position_ids=positions)[1, real]
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="dynamic"):
        case.model.generate(
            ids(), max_new_tokens=2, cache_implementation="static", disable_compile=True
        )


def test_a_gate_sees_the_tokens() -> None:
    case = bert()
    expected = case.run()
    swap(case.model, "gated")
    gates = [p for n, p in case.model.named_parameters() if n.endswith("gate")]
    assert len(gates) == 2
    for gate in gates:
        gate.zero_()  # all gates half open
    with_values_doubled = case.model
    for layer in with_values_doubled.encoder.layer:
        layer.attention.output.dense.weight.mul_(2.0)
    torch.testing.assert_close(case.real(case.run()), case.real(expected), atol=1e-5, rtol=1e-5)
    copy.deepcopy(case.model)


def test_dropout_drops_in_training_alone() -> None:
    case = llama(attention_dropout=0.5)
    swap(case.model, "quest")
    assert torch.equal(case.run(), case.run())
    case.model.train()
    assert not torch.allclose(case.run(), case.run(), atol=1e-4)


def test_saved_weights_load_into_a_model_that_is_swapped_again(tmp_path: Path) -> None:
    case = llama()
    swap(case.model, "quest")
    expected = case.run()
    case.model.save_pretrained(tmp_path)
    again = case._replace(model=transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval())
    assert again.model.config._attn_implementation == "sdpa"
    swap(again.model, "quest")
    assert torch.equal(again.run(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [llama, bert])
def test_a_compiled_model_computes_the_same(make: Any) -> None:
    case = make(num_hidden_layers=1)
    swap(case.model, "quest")
    expected = case.run()
    case.model.compile(backend="aot_eager")
    torch.testing.assert_close(case.run(), expected, atol=5e-6, rtol=1e-5)


def _train(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    grads = []
    for distributed in (True, False):
        torch.manual_seed(0)
        model = llama().model
        swap(model, "qknorm_hs")
        net = nn.parallel.DistributedDataParallel(model) if distributed else model
        text = ids()[rank::2] if distributed else ids()
        with torch.enable_grad():
            net(text).logits.square().mean().backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-5, rtol=1e-3)
    torch.distributed.destroy_process_group()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(
        _train, args=(str(tmp_path / "store"),), nprocs=2, start_method="fork"
    )
