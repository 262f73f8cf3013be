"""Equality with the reference implementations, on stored numbers (`tests/vectors/README.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attention import AttentionFactory
from domains.language.config import ModelConfig
from domains.language.interface import LanguageModel, Memory
from domains.language.transformer import Transformer
from domains.language.transformer_xl import TransformerXL

FOLDER = Path(__file__).parents[2] / "vectors"
WORDS = 50
EMBEDDING = "word_emb.emb_layers.0.weight"
NAMES = (
    ("dec_attn.o_net", "attention.out_proj"),
    ("dec_attn.q_net", "attention.q_proj"),
    ("dec_attn.r_net", "attention.distance_proj"),
    ("dec_attn.layer_norm", "block.norm1"),
    ("pos_ff.CoreNet.0", "block.expand"),
    ("pos_ff.CoreNet.3", "block.contract"),
    ("pos_ff.layer_norm", "block.norm2"),
    ("crit.out_layers.0.bias", "softmax.bias"),
    ("crit.cluster", "softmax.cluster"),
    ("r_w_bias", "biases.content"),
    ("r_r_bias", "biases.distance"),
)


def load(name: str) -> dict[str, Tensor]:
    with np.load(FOLDER / name, allow_pickle=False) as stored:
        return {key: torch.from_numpy(stored[key]) for key in stored.files}


def ours(theirs: Mapping[str, Tensor], embedding: str) -> dict[str, Tensor]:
    """Parameters or gradients of the reference under our names and in our shapes."""
    found = {}
    for name, value in theirs.items():
        if name == EMBEDDING:
            found[embedding] = value
            continue
        for old, new in NAMES:
            name = name.replace(old, new)
        if "_net" in name:  # several projections in one weight
            letters = "qkv" if "qkv_net" in name else "kv"
            layer = name.split("dec_attn")[0]
            for letter, part in zip(letters, value.chunk(len(letters)), strict=True):
                found[f"{layer}attention.{letter}_proj.weight"] = part
        else:
            found[name] = value[:, None] if name.startswith("biases.") else value
    return found


def under(stored: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}


def assert_close(found: Tensor, stored: Tensor, tolerance: float, what: str = "") -> None:
    torch.testing.assert_close(
        found, stored, atol=tolerance, rtol=0.0, msg=lambda message: f"{what}: {message}"
    )


def assert_gradients(net: LanguageModel, expected: Mapping[str, Tensor], tolerance: float) -> None:
    assert expected
    for name, value in expected.items():
        gradient = net.get_parameter(name).grad
        assert gradient is not None, name
        assert_close(gradient, value, tolerance, name)


def all_log_probabilities(net: LanguageModel, hidden_d: Tensor, embedding: Tensor) -> Tensor:
    """(V,) of every word after one position."""
    words = torch.arange(len(embedding))
    found: Tensor = net.softmax(hidden_d.expand(len(words), -1), words, embedding)
    return found


def test_the_transformer_equals_lmtool_fwp() -> None:
    stored = load("transformer_lm.npz")
    model = ModelConfig(
        layers=2, width=16, heads=4, head_width=4, feedforward=32,
        cutoffs=stored["cutoffs"].tolist(),
    )  # fmt: skip
    net = Transformer(model, AttentionFactory(), vocabulary=WORDS, longest=12).eval()
    net.load_state_dict(ours(under(stored, "param."), "embedding.words.weight"))
    tokens = stored["token_ids"]

    hidden = net.hidden(tokens[:, :-1])
    assert_close(hidden, stored["final_hidden"], 1e-5, "hidden")
    log_likelihood, memory = net.log_likelihood(tokens[:, :-1], tokens[:, 1:])
    assert memory is None
    assert_close(-log_likelihood, stored["nll"], 1e-5, "nll")
    place = int(stored["log_probs_batch_index"]), int(stored["log_probs_position"])
    log_probabilities = all_log_probabilities(net, hidden[place], net.embedding.words.weight)
    assert_close(log_probabilities, stored["log_probs"], 1e-5, "log_probs")
    loss = -log_likelihood.mean()
    assert_close(loss, stored["mean_loss"], 1e-5, "loss")
    loss.backward()
    assert_gradients(net, ours(under(stored, "grad."), "embedding.words.weight"), 2e-6)


def transformer_xl(stored: Mapping[str, Tensor]) -> TransformerXL:
    model = ModelConfig(
        family="transformer_xl", layers=2, width=16, heads=2, head_width=8, feedforward=32,
        memory=6, cutoffs=stored["cutoffs"].tolist(),
    )  # fmt: skip
    net = TransformerXL(model, AttentionFactory(), vocabulary=WORDS).eval()
    net.load_state_dict(ours(under(stored, "param."), "embedding.weight"))
    return net


def read_segments(
    net: TransformerXL, stored: Mapping[str, Tensor], form: str, memory: Memory, length: int
) -> Tensor:
    """Compare losses and memories segment by segment; the log-likelihood of the last one.

    The reference keeps the last layer's output as well and never reads it; it is compared with
    what the network gives.
    """
    tokens = stored["token_ids"]
    outputs = torch.zeros(2, 0, 16)
    log_likelihood = torch.zeros(0)
    for segment in range(18 // length):
        read = slice(segment * length, (segment + 1) * length)
        inputs, targets = tokens[:, :-1][:, read], tokens[:, 1:][:, read]
        outputs = torch.cat([outputs, net.hidden(inputs, memory=memory)[0].detach()], dim=1)
        log_likelihood, new = net.log_likelihood(inputs, targets, memory=memory)
        assert new is not None
        memory = new
        assert_close(-log_likelihood, stored[f"{form}.segment{segment}.nll"], 3e-5, "nll")
        expected = stored.get(f"{form}.segment{segment}.mems")
        if expected is not None:
            found = torch.stack([*memory.layers, outputs[:, -6:]])
            assert_close(found, expected, 2e-5, "memory")
    return log_likelihood


def test_transformer_xl_equals_its_published_code_as_trained() -> None:
    stored = load("transformer_xl.npz")
    net = transformer_xl(stored)
    last = read_segments(net, stored, "train_form", net.new_memory(), 6)
    (-last.mean()).backward()
    gradients = ours(under(stored, "train_form.segment2.grad."), "embedding.weight")
    assert_gradients(net, gradients, 1e-5)


def test_transformer_xl_equals_its_published_code_as_evaluated() -> None:
    stored = load("transformer_xl.npz")
    net = transformer_xl(stored)
    for form, length in (("eval_form", 6), ("eval_form_tgt4", 4)):
        read_segments(net, stored, form, net.new_memory(clamp=4, equal_context=True), length)
