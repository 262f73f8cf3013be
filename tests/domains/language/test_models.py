"""Both families with every variant: parameters, causality, the last position, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from attention import (
    AttentionFactory,
    LayerState,
    UnsupportedError,
    kernels,
    recompute,
    registry,
    telemetry,
)
from attention.tags import tag_of
from domains.language import layers
from domains.language.config import ModelConfig
from domains.language.interface import LanguageModel
from domains.language.transformer import Transformer
from domains.language.transformer_xl import TransformerXL
from tests.test_architecture import ROOT

from .networks import (
    FAMILIES,
    REFUSED,
    LargestTensor,
    config,
    counted,
    network,
    options_of,
    tokens,
    variants,
)

WIKITEXT_103 = 267_735
PUBLISHED = {
    "transformer_small": (44_018_394, 9_480_192),
    "transformer_medium": (89_833_434, 21_024_768),
    "transformer_xl": (151_107_538, 41_066_400),
}
"""Parameters in all, and in the layers."""

LAYERS = 16
EXACT: dict[str, float] = {"atol": 1e-12, "rtol": 0.0}
CASES = [(family, variant) for family in FAMILIES for variant in variants(family)]


def model_of(recipe: str) -> ModelConfig:
    """The model of a recipe as its YAML describes it."""
    path = ROOT / "conf" / "recipe" / "language" / f"{recipe}.yaml"
    return ModelConfig(**yaml.safe_load(path.read_text(encoding="utf-8"))["model"])


def own_parameters(variant: str, model: ModelConfig) -> int:
    """What a variant adds: heads or widths of a head, in every layer."""
    return LAYERS * {
        "qknorm_hs": model.heads,
        "qknorm_ds": 2 * model.head_width,
        "qknorm_ln": 4 * model.head_width,
    }.get(variant, 0)


@pytest.mark.parametrize(
    ("recipe", "variant"),
    [(recipe, name) for recipe in PUBLISHED for name in variants(model_of(recipe).family)],
)
def test_parameters_are_the_published_ones_and_the_variants_own(recipe: str, variant: str) -> None:
    model = model_of(recipe)
    assert model.name == recipe
    factory = AttentionFactory(variant, options_of(variant))
    net: LanguageModel
    with torch.device("meta"):
        if model.family == "transformer":
            net = Transformer(model, factory, vocabulary=WIKITEXT_103, longest=model.width)
        else:
            net = TransformerXL(model, factory, vocabulary=WIKITEXT_103)
    learned = registry.entry(variant).learned
    own = sum(p.numel() for name, p in net.named_parameters() if ".variant." in name)
    total, in_layers = PUBLISHED[recipe]
    assert counted(net) == total + own
    assert counted(net.layers) == in_layers + own
    assert (own > 0) == bool(learned)
    if variant in ("qknorm_hs", "qknorm_ds", "qknorm_ln") or not learned:
        assert own == own_parameters(variant, model)


def read(net: LanguageModel, sequence: Tensor, watched: bool) -> tuple[list[Tensor], Any]:
    """Log-likelihoods over two segments, the second with what is remembered, and readings."""
    memory = net.new_memory()
    found = []
    with telemetry.attach(net, mode="exact") as watch:
        if not watched:
            watch.detach()
        for segment in sequence.split(7, dim=1):
            log_likelihood, memory = net.log_likelihood(segment, segment, memory=memory)
            found.append(log_likelihood)
        readings = watch.collect()
    return found, readings


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_a_later_token_changes_nothing_before_it(family: str, variant: str) -> None:
    """Neither through attention, the state between layers, the memory, nor the telemetry."""
    net = network(config(family), variant)
    sequence = tokens(2, 13)
    plain, _ = read(net, sequence, watched=False)
    for changed in (1, 5, 6, 7, 8, 13):  # the second segment begins at 7
        other = sequence.clone()
        other[:, changed] = (other[:, changed] + 1) % 30
        found, readings = read(net, other, watched=True)
        assert len(readings) == 3
        joined, expected = torch.cat(found, dim=1), torch.cat(plain, dim=1)
        # Not bit for bit: which tokens share a product of the softmax depends on the targets.
        torch.testing.assert_close(joined[:, :changed], expected[:, :changed], **EXACT)
        assert not torch.allclose(joined[:, changed:], expected[:, changed:])


@pytest.mark.parametrize(("family", "variant"), REFUSED)
def test_what_a_family_cannot_serve_is_refused_by_name(family: str, variant: str) -> None:
    """That the table is complete is the other tests' matter: they run all variants not in it."""
    named = f"attention='{variant}'.*{REFUSED[family, variant]}.*{family}; use model.family="
    with pytest.raises(UnsupportedError, match=named):
        network(config(family), variant)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_leaky_estimate_is_seen_to_leak_and_else_refused(family: str) -> None:
    """The check above finds the leak, so it would find another one."""
    with pytest.raises(UnsupportedError, match=r"shows a causal model the future.*causal=true"):
        network(config(family), "elliptical", {})
    net = network(config(family), "elliptical", {"causal": "leaky"})
    sequence = tokens(2, 6)
    other = sequence.clone()
    other[:, -1] = (other[:, -1] + 1) % 30
    found, expected = (net.log_likelihood(s, s, memory=None)[0] for s in (other, sequence))
    assert not torch.allclose(found[:, :-1], expected[:, :-1], **EXACT)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_the_last_position_alone_equals_the_last_of_all(family: str, variant: str) -> None:
    net = network(config(family), variant)
    memory = net.new_memory()
    for segment in tokens(2, 13).split(7, dim=1):
        every, kept = net.log_likelihood(segment, segment, memory=memory)
        last, kept_by_last = net.log_likelihood(segment, segment, memory=memory, last_only=True)
        assert last.shape == (2, 1)
        torch.testing.assert_close(last, every[:, -1:], **EXACT)
        if kept is not None and kept_by_last is not None:
            for one, other in zip(kept.layers, kept_by_last.layers, strict=True):
                torch.testing.assert_close(one, other, **EXACT)
        memory = kept


@pytest.mark.parametrize("variant", variants("transformer"))
def test_no_matrix_of_all_pairs_is_stored(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forward nor backward; Transformer-XL has one, of its position terms."""
    monkeypatch.setattr(kernels, "STORED_SCORES_LIMIT", 2**13)
    monkeypatch.setattr(recompute, "BLOCK_SCORES", 2**13)
    net = network(config(layers=2), variant)
    sequence = tokens(1, 299)
    with LargestTensor() as seen:
        net.log_likelihood(sequence, sequence)[0].sum().backward()
    # Blocks of scores share one causal mask; scores of both heads would be twice as many.
    assert seen.numbers <= 300 * 300


def test_the_last_position_alone_computes_no_other_in_the_last_layer() -> None:
    net = network(config())
    rows: list[int] = []
    for layer in net.layers:
        layer.block.register_forward_hook(lambda _, args, out: rows.append(out.shape[1]))
    net.softmax.register_forward_hook(lambda _, args, out: rows.append(len(out)))
    net.log_likelihood(tokens(1, 6), tokens(1, 6), last_only=True)
    assert rows == [7, 7, 1, 1]


@pytest.mark.parametrize("numbers", [1, 50])
def test_the_feed_forward_maps_in_parts_are_those_of_all_tokens(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(config()).eval()
    sequence = tokens(3, 6)
    whole, _ = net.log_likelihood(sequence, sequence)
    monkeypatch.setattr(layers, "HIDDEN_AT_ONCE", numbers)
    with LargestTensor() as seen, torch.no_grad():
        parts, _ = net.log_likelihood(sequence, sequence)
    torch.testing.assert_close(parts, whole, **EXACT)
    assert seen.numbers < 3 * 7 * config().feedforward


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_positions_tell_tokens_apart(positions: str) -> None:
    """Without them the order of the tokens before the last would not matter."""
    net = network(config(positions=positions))
    sequence = tokens(1, 6)
    turned = torch.cat([sequence[:, :-1].flip(1), sequence[:, -1:]], dim=1)
    first, second = (net.hidden(s)[:, -1] for s in (sequence, turned))
    assert not torch.allclose(first, second)


def test_positions_count_down_to_the_last_token() -> None:
    """A token is where it is as seen from the end, however much stands before it."""
    net = network(config())
    assert isinstance(net, Transformer)
    sequence = tokens(1, 9)
    embedded = net.embedding(sequence)
    torch.testing.assert_close(net.embedding(sequence[:, 4:]), embedded[:, 4:])


def test_rotary_attention_depends_on_distances_alone() -> None:
    net = network(config(positions="rotary", layers=1))
    (layer,) = net.layers
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    maps = layer.attention
    seen: list[Tensor] = []
    maps.core.register_forward_hook(lambda _, args, out: seen.append(args[0] @ args[1].mT))
    layer(x, LayerState())
    layer(torch.cat([torch.randn_like(x[:, :3]), x], dim=1), LayerState())
    # Angles are computed in float32, whatever the dtype of the model.
    torch.testing.assert_close(seen[1][..., 3:, 3:], seen[0], atol=1e-5, rtol=0)
    q = maps.split(maps.q_proj(x))
    turned = seen[0].diagonal(dim1=-2, dim2=-1)
    aligned = (q * maps.split(maps.k_proj(x))).sum(-1)
    torch.testing.assert_close(turned, aligned, atol=1e-5, rtol=0)


def test_learned_positions_refuse_what_they_have_not_learned() -> None:
    net = network(config(positions="learned"))
    net.log_likelihood(tokens(1, 15), tokens(1, 15))
    with pytest.raises(ValueError, match="learned was built for 16 positions and got 17"):
        net.log_likelihood(tokens(1, 16), tokens(1, 16))


def test_a_transformer_without_a_memory_refuses_one() -> None:
    remembered = network(config("transformer_xl")).new_memory()
    net = network(config())
    assert net.new_memory(length=3) is None
    with pytest.raises(ValueError, match=r"model\.family=transformer has none"):
        net.log_likelihood(tokens(1, 6), tokens(1, 6), memory=remembered)


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_and_keys_are_tagged_as_such(family: str) -> None:
    tags = tag_of(network(config(family)))
    projections = {"q_proj": "qk", "k_proj": "qk", "distance_proj": "qk", "v_proj": "ov"}
    for name, tag in tags.items():
        kind = name.split(".")[-2]
        assert tag == {**projections, "out_proj": "ov", "biases": "qk"}[kind]
    assert len(tags) == (12 if family == "transformer" else 17)


@pytest.mark.parametrize("family", FAMILIES)
def test_initial_weights_have_the_published_spread(family: str) -> None:
    torch.manual_seed(0)
    model = config(family, width=64, heads=4, head_width=16, feedforward=256)
    factory = AttentionFactory()
    net: LanguageModel = (
        Transformer(model, factory, vocabulary=500, longest=8)
        if family == "transformer"
        else TransformerXL(model, factory, vocabulary=500)
    )
    for name, parameter in net.state_dict().items():
        if "norm" in name and name.endswith("weight"):
            assert abs(float(parameter.mean()) - 1.0) < 0.01, name
            assert 0.012 < float(parameter.std()) < 0.028, name
        elif name.endswith("bias") and "biases" not in name:
            assert not parameter.any(), name
        elif parameter.numel() > 500:
            assert 0.018 < float(parameter.std()) < 0.022, name
        else:
            assert parameter.std() > 0.0, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "rnn"}, "model.family='rnn' is unknown; allowed: transformer, transformer_xl"),
        ({"memory": 4}, "model.memory=4 must be 0 with model.family=transformer"),
        ({"relative": "content"}, "model.relative=content must be 'separate' with"),
        ({"family": "transformer_xl", "positions": "rotary"}, "model.positions=rotary must be"),
        ({"positions": "rotary", "head_width": 5}, "model.head_width=5 must be even"),
        ({"width": 13}, "model.width=13 must be even"),
        ({"cutoffs": [20, 10]}, r"model.cutoffs=\[20, 10\] must be positive and rising"),
        ({"cutoffs": [0]}, r"model.cutoffs=\[0\] must be positive"),
        ({"dropout": 1.0}, "model.dropout=1.0 must be at least 0 and below 1"),
    ],
)
def test_what_a_model_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**changes)


def test_what_differs_from_a_published_model_is_in_its_name() -> None:
    xl = model_of("transformer_xl")
    assert ModelConfig(positions="rotary", tied=False).name == "transformer_small_rotary_untied"
    assert ModelConfig(width=64).name == "transformer_16x64"
    assert ModelConfig(**{**vars(xl), "relative": "unscaled"}).name == "transformer_xl_unscaled"
