"""Small random models of transformers, with an input and the names of their key projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip(
    "transformers", reason="needs the extra hf: transformers is not installed"
)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}


class Case(NamedTuple):
    """A model in evaluation mode, a call of it, and where its keys are projected."""

    model: Any
    inputs: dict[str, Tensor]
    keys: str

    def run(self, **changes: Any) -> Tensor:
        return self.model(**{**self.inputs, **changes})[0]

    def real(self, out: Tensor) -> Tensor:
        """Of what `run` gave, the positions that are no padding."""
        mask = self.inputs.get("attention_mask")
        fits = mask is not None and mask.shape == out.shape[:2]
        return out[mask.bool()] if fits else out


def shake(model: nn.Module) -> Any:
    """Every parameter at random: biases and norms too, which start where mistakes do not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids(length: int = 6, *, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 50, (2, length), generator=generator)


def padded(*, left: bool = False) -> dict[str, Tensor]:
    """Two texts, the second two tokens shorter."""
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, slice(0, 2) if left else slice(4, 6)] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def llama(**changes: Any) -> Case:
    config = transformers.LlamaConfig(**{**GROUPED, **changes})
    return Case(shake(transformers.LlamaForCausalLM(config)), padded(left=True), "k_proj")


def mistral() -> Case:
    config = transformers.MistralConfig(**GROUPED, sliding_window=3)
    return Case(shake(transformers.MistralForCausalLM(config)), padded(left=True), "k_proj")


def gpt2() -> Case:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=32, bos_token_id=1,
        eos_token_id=2, scale_attn_by_inverse_layer_idx=True,
    )  # fmt: skip
    return Case(shake(transformers.GPT2LMHeadModel(config)), padded(left=True), "c_attn")


def bert(**changes: Any) -> Case:
    config = transformers.BertConfig(**{**SIZES, **changes})
    return Case(shake(transformers.BertModel(config)), padded(), "key")


def vit() -> Case:
    sizes = {name: value for name, value in SIZES.items() if not name.endswith(("size", "id"))}
    config = transformers.ViTConfig(
        **sizes, hidden_size=32, intermediate_size=48, image_size=16, patch_size=4
    )
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    return Case(shake(transformers.ViTModel(config)), {"pixel_values": pictures}, "k_proj")


def bart() -> Case:
    config = transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=50,
        max_position_embeddings=32,
    )  # fmt: skip
    model = shake(transformers.BartForConditionalGeneration(config))
    return Case(model, {**padded(), "decoder_input_ids": ids(4, seed=4)}, "k_proj")


def t5() -> Case:
    """Relative positions as a bias, and scores without a scale."""
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50
    )
    model = shake(transformers.T5Model(config))
    return Case(model, {**padded(), "decoder_input_ids": ids(4, seed=4)}, "k")


def whisper() -> Case:
    """Queries that are scaled before."""
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=50,
        num_mel_bins=8, max_source_positions=10, max_target_positions=10, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    sound = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(6))
    inputs = {"input_features": sound, "decoder_input_ids": ids(4, seed=4)}
    return Case(shake(transformers.WhisperModel(config)), inputs, "k_proj")


def qwen3() -> Case:
    config = transformers.Qwen3Config(**GROUPED)
    return Case(shake(transformers.Qwen3ForCausalLM(config)), padded(left=True), "k_proj")


def gemma2() -> Case:
    config = transformers.Gemma2Config(**GROUPED, attn_logit_softcapping=0.5)
    return Case(shake(transformers.Gemma2ForCausalLM(config)), padded(left=True), "k_proj")


def gpt_oss() -> Case:
    config = transformers.GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1)
    return Case(shake(transformers.GptOssForCausalLM(config)), padded(left=True), "k_proj")


CASES: dict[str, Callable[[], Case]] = {
    "llama": llama,
    "mistral": mistral,
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "bart": bart,
    "t5": t5,
    "whisper": whisper,
}
"""Models that bring nothing of their own to the scores."""

OWN: dict[str, Callable[[], Case]] = {"qwen3": qwen3, "gemma2": gemma2, "gpt_oss": gpt_oss}
"""Models with normalised queries and keys, a cap, and sinks."""


def example(case: Case) -> dict[str, Any] | None:
    """What a swap has to be given to call the model."""
    return case.inputs if "input_features" in case.inputs else None


def scale_keys(case: Case, factor: float) -> None:
    """Multiply every projection to keys, weight and bias."""
    count = 0
    with torch.no_grad():
        for name, module in case.model.named_modules():
            if name.rpartition(".")[2] != case.keys:
                continue
            count += 1
            part = slice(32, 64) if case.keys == "c_attn" else slice(None)
            module.weight[..., part].mul_(factor)
            if module.bias is not None:
                module.bias[part].mul_(factor)
    assert count >= 2
