"""Models of transformers: the same properties, caches, and what they bring themselves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attention import UnsupportedError, swap, telemetry
from tests.attention.swapping.hf_models import (
    CASES,
    GROUPED,
    OWN,
    SIZES,
    Case,
    bart,
    bert,
    example,
    gemma2,
    gpt_oss,
    ids,
    llama,
    mistral,
    qwen3,
    scale_keys,
    shake,
    t5,
    transformers,
    vit,
    whisper,
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


def test_a_metric_of_all_tokens_is_refused_in_a_decoder() -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn: .*causal=true"):
        swap(llama().model, "elliptical")


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


@pytest.mark.parametrize("name", ["qk_clip", "sigma_reparam"])
def test_variants_that_act_on_weights_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{name}' acts on the weights.*of this package"):
        swap(llama().model, name)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("qwen3", r"normalised or clipped queries and keys \(q_norm, k_norm\)"),
        ("gemma2", "a cap on its scores"),
        ("gpt_oss", "a sink"),
    ],
)
def test_what_a_model_brings_itself_is_refused_unless_told(kind: str, words: str) -> None:
    case = OWN[kind]()
    expected = case.run()
    with pytest.raises(UnsupportedError, match=f"has {words} of its own; pass own='keep'"):
        swap(case.model, "quest")
    assert torch.equal(case.run(), expected)
    report = swap(case.model, "standard", own="keep")
    torch.testing.assert_close(case.real(case.run()), case.real(expected), atol=5e-6, rtol=1e-5)
    assert "of the model's own, kept under the variant" in str(report)
    report.undo()
    report = swap(case.model, "standard", own="replace")
    assert not torch.allclose(case.real(case.run()), case.real(expected), atol=1e-3)
    report.undo()
    assert torch.equal(case.run(), expected)


def test_replaced_norms_are_out_of_the_way() -> None:
    case, plain = qwen3(), llama(attention_bias=False)
    swap(case.model, "quest", own="replace")
    state = states(case.model)
    plain.model.load_state_dict({n: t for n, t in state.items() if "_norm" not in n or
                                 "self_attn" not in n}, strict=False)  # fmt: skip
    swap(plain.model, "quest")
    plain.model.config.rope_parameters = case.model.config.rope_parameters
    torch.testing.assert_close(case.real(case.run()), plain.real(plain.run()), atol=1e-5, rtol=1e-4)


def test_a_cap_of_the_model_goes_under_quest() -> None:
    case, other = gemma2(), gemma2()
    other.model.load_state_dict(case.model.state_dict())
    swap(case.model, "quest", own="keep")
    swap(other.model, "quest+softcap", own="replace", options={"cap": 0.5})
    torch.testing.assert_close(case.run(), other.run())
    with pytest.raises(UnsupportedError, match="a map or a sink itself"):
        swap(gemma2().model, "sink", own="keep")
    with pytest.raises(UnsupportedError, match="a map or a sink itself"):
        swap(gpt_oss().model, "softcap", own="keep")


def test_a_clip_shows_also_where_small_inputs_do_not_reach_it() -> None:
    config = transformers.OlmoConfig(**{**SIZES, "clip_qkv": 8.0})
    with pytest.raises(UnsupportedError, match="normalised or clipped queries and keys of its own"):
        swap(transformers.OlmoForCausalLM(config), "quest")


def test_norms_without_a_known_name_cannot_be_switched_off() -> None:
    config = transformers.OlmoConfig(**{**SIZES, "clip_qkv": 8.0})
    with pytest.raises(UnsupportedError, match="cannot be switched off"):
        swap(transformers.OlmoForCausalLM(config), "quest", own="replace")


def test_biases_of_the_projections_are_no_norm() -> None:
    config = transformers.Qwen2Config(**{k: v for k, v in GROUPED.items() if k != "head_dim"})
    model = transformers.Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):
            parameter.fill_(30.0)
    assert len(swap(model, "quest").replaced) == 2


def test_a_model_outside_the_interface_is_refused() -> None:
    config = transformers.DebertaConfig(**SIZES)
    model = transformers.DebertaModel(config)
    with pytest.raises(ValueError, match="did not call the attention interface of transformers"):
        swap(model, "quest")


def test_a_model_without_attention_is_refused() -> None:
    config = transformers.MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=1,
                                      vocab_size=50)  # fmt: skip
    with pytest.raises(ValueError, match="no attention that could be replaced"):
        swap(transformers.MambaForCausalLM(config), "quest")


def test_a_model_that_cannot_be_called_asks_for_an_example() -> None:
    case = whisper()
    with pytest.raises(UnsupportedError, match=r"takes 'input_features'.*pass example="):
        swap(case.model, "quest")
    with pytest.raises(UnsupportedError, match=r"could not be called with the example .*example="):
        swap(case.model, "quest", example={"input_ids": ids()})
    assert case.model.config._attn_implementation == "sdpa"


def test_layers_that_are_left_out_compute_what_they_did() -> None:
    case = bert()
    expected = case.run()
    report = swap(case.model, "standard", where=lambda name, _: ".1." in name)
    assert [each.name for each in report.left] == ["encoder.layer.0.attention.self"]
    torch.testing.assert_close(case.real(case.run()), case.real(expected), **EXACT)
    report.undo()
    swap(case.model, "quest", where=lambda name, _: ".1." in name)
    assert not torch.allclose(case.run(), expected, atol=1e-3)


def test_layers_left_out_do_not_lose_their_sinks() -> None:
    case = gpt_oss()
    swap(case.model, "quest", own="keep", where=lambda name, _: ".1." in name)
    with pytest.raises(ValueError, match="swap all layers of this model, or none"):
        case.run()


def test_a_part_of_a_larger_model_is_found_and_named() -> None:
    model = nn.ModuleDict({"text": bert().model, "head": nn.MultiheadAttention(32, 4)})
    report = swap(model, "quest")
    assert [each.name for each in report.replaced] == [
        "head",
        "text.encoder.layer.0.attention.self",
        "text.encoder.layer.1.attention.self",
    ]
    assert str(report).splitlines()[2].split("  ")[1:4] == [
        "text.encoder.layer.0.attention.self",
        "transformers BertSelfAttention",
        ["4 heads of 8", "", "", "", "", "", "", " layer 1 of 2"][0],
    ]


def test_layers_of_an_encoder_and_decoder_are_counted_apart() -> None:
    for case in (bart(), t5()):
        report = swap(case.model, "quest")
        assert [each.num_layers for each in report.replaced] == [2] * 6
        report.undo()


def test_weights_that_cannot_be_handed_out_are_refused() -> None:
    case = llama()
    swap(case.model, "quest")
    with pytest.raises(ValueError, match="output_attentions"):
        case.run(output_attentions=True)


def test_another_model_of_the_same_configuration_stays_itself() -> None:
    case = bert()
    other = shake(transformers.BertModel(case.model.config))
    expected = other(**case.inputs)[0]
    swap(case.model, "quest")
    torch.testing.assert_close(other(**case.inputs)[0], expected)


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
@pytest.mark.parametrize("make", [llama, bert, vit])
def test_a_compiled_model_computes_the_same(make: Any) -> None:
    case = make()
    original = case.run()
    case.model.compile(backend="aot_eager")
    torch.testing.assert_close(case.run(), original, atol=5e-6, rtol=1e-5)
    report = swap(case.model, "quest")
    twin = copy.deepcopy(case.model)
    expected = twin.forward(**case.inputs)[0]
    torch.testing.assert_close(case.run(), expected, atol=5e-6, rtol=1e-5)
    report.undo()
    torch.testing.assert_close(case.run(), original, atol=5e-6, rtol=1e-5)


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
