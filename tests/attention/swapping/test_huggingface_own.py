"""Models of transformers: what they bring themselves, what is refused, and what is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from attention import UnsupportedError, swap
from tests.attention.swapping.hf_models import (
    GROUPED,
    OWN,
    SIZES,
    bart,
    bert,
    gemma2,
    gpt_oss,
    ids,
    llama,
    qwen3,
    shake,
    t5,
    transformers,
    whisper,
)

EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_metric_of_all_tokens_is_refused_in_a_decoder() -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn: .*causal=true"):
        swap(llama().model, "elliptical")


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


@pytest.mark.parametrize("kind", ["Deberta", "Bloom", "XLNet", "Falcon", "GPTNeo"])
def test_a_model_outside_the_interface_is_refused(kind: str) -> None:
    sizes = {
        "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50},
        "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 50},
        "GPTNeo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 50,
                   "attention_types": [[["global", "local"], 1]]},
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes.get(kind, SIZES))
    model = getattr(transformers, f"{kind}Model")(config)
    with pytest.raises(ValueError, match="did not call the attention interface of transformers"):
        swap(model, "quest")


def test_parts_that_the_made_up_input_does_not_reach_are_named() -> None:
    pictures = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 4, "intermediate_size": 48}  # fmt: skip
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**GROUPED),
        vision_config=transformers.CLIPVisionConfig(**pictures),
        image_token_index=49,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with pytest.raises(ValueError, match=r"vision_tower.*pass that as example="):
        swap(model, "quest")
    report = swap(model, "quest", where=lambda name, _: "language_model" in name)
    assert len(report.replaced) == 2
    assert [each.kind for each in report.left] == [
        "transformers.models.clip.modeling_clip.CLIPAttention"
    ]


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
    with pytest.raises(UnsupportedError, match="no input could be made up for SegformerModel"):
        swap(transformers.SegformerModel(transformers.SegformerConfig()), "quest")


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
