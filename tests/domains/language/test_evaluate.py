"""Perplexities against loops that do one thing at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from domains.language import evaluate
from domains.language.evaluate import Score
from domains.language.interface import LanguageModel
from domains.language.stream import Segments

from . import networks
from .fake_model import MeanModel

VOCABULARY = 50


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2000,), generator=torch.Generator().manual_seed(1))


def one_window_at_a_time(model: LanguageModel, tokens: Tensor, window: int) -> tuple[float, int]:
    """The published loop: batch 1, all losses of every window computed, most thrown away."""
    model.eval()
    nats, positions = 0.0, 0
    with torch.no_grad():
        for start in range(len(tokens) - window):
            inputs, targets = tokens[start : start + window], tokens[start + 1 : start + window + 1]
            each, _ = model.log_likelihood(inputs[None], targets[None])
            kept = each[0] if start == 0 else each[0, -1:]
            nats -= kept.double().sum().item()
            positions += len(kept)
    return nats, positions


@pytest.mark.parametrize("batch", [1, 64, 5000])
def test_sliding_equals_one_window_at_a_time(tokens, batch):
    window = 48
    nats, positions = one_window_at_a_time(MeanModel(VOCABULARY), tokens, window)
    score = evaluate.sliding(MeanModel(VOCABULARY), tokens, window=window, batch=batch)
    assert score.positions == positions == 1999
    assert score.loss == pytest.approx(nats / positions, abs=1e-6)


@pytest.mark.parametrize("family", networks.FAMILIES)
def test_sliding_of_the_real_models_equals_one_window_at_a_time(family):
    tokens = networks.tokens(1, 300)[0]
    net = networks.network(networks.config(family))
    nats, positions = one_window_at_a_time(net, tokens, 16)
    score = evaluate.sliding(net, tokens, window=16)
    assert score.positions == positions == 300
    assert score.loss == pytest.approx(nats / positions, abs=1e-6)


def test_sliding_does_not_depend_on_the_batch():
    tokens = networks.tokens(1, 300)[0]
    net = networks.network(networks.config()).float()
    one, eight = (evaluate.sliding(net, tokens, window=16, batch=size) for size in (1, 8))
    assert one.loss == pytest.approx(eight.loss, abs=1e-5)


def test_sliding_computes_the_last_target_of_all_windows_but_the_first(tokens):
    model = MeanModel(VOCABULARY)
    evaluate.sliding(model, tokens[:200], window=48, batch=64)
    assert model.batches == [(1, 48, False), (64, 48, True), (64, 48, True), (23, 48, True)]
    assert model.memories == [None] * 4


@pytest.mark.parametrize("extra", [1, 2])
def test_sliding_of_a_text_little_longer_than_the_window(tokens, extra):
    text = tokens[: 48 + extra]
    nats, positions = one_window_at_a_time(MeanModel(VOCABULARY), text, 48)
    score = evaluate.sliding(MeanModel(VOCABULARY), text, window=48)
    assert score.positions == positions == 47 + extra
    assert score.nats == pytest.approx(nats, abs=1e-5)


def test_sliding_refuses_a_text_that_is_no_longer_than_the_window(tokens):
    with pytest.raises(ValueError, match=r"48 tokens .* recipe\.window=48; allowed: up to 47"):
        evaluate.sliding(MeanModel(VOCABULARY), tokens[:48], window=48)


def test_segments_equal_the_batches_of_validation(tokens):
    """2,000 tokens in 7 columns of 285: 284 targets each, the last segment is shorter."""
    model = MeanModel(VOCABULARY).eval()
    cut = Segments("val", tokens.numpy(), columns=7, length=48)
    losses = [model.log_likelihood(cut[i].inputs, cut[i].targets)[0] for i in range(len(cut))]
    assert [each.shape[1] for each in losses] == [48, 48, 48, 48, 48, 44]
    score = evaluate.segments(model, tokens, length=48, columns=7)
    assert score.positions == 7 * 284
    assert score.nats == pytest.approx(-sum(each.sum().item() for each in losses), rel=1e-6)


def test_segments_hand_the_memory_on_and_start_without(tokens):
    model = MeanModel(VOCABULARY, memory=16)
    evaluate.segments(model, tokens, length=48, columns=7)
    lengths = [memory.layers[0].shape[1] if memory.layers else 0 for memory in model.memories]
    assert lengths == [0, 16, 16, 16, 16, 16]
    assert not any(memory.equal_context for memory in model.memories)


def test_xl_gives_every_token_the_same_long_context(monkeypatch):
    """Against a loop over positions, each with its own context from the start of the column."""
    monkeypatch.setattr(evaluate, "XL_SEGMENT", 8)
    monkeypatch.setattr(evaluate, "XL_MEMORY", 20)
    monkeypatch.setattr(evaluate, "XL_CLAMP", 12)
    tokens = torch.randint(VOCABULARY, (305,), generator=torch.Generator().manual_seed(2))
    model = MeanModel(VOCABULARY, memory=4)
    score = evaluate.xl(model, tokens, columns=3)
    assert [shape[:2] for shape in model.batches] == [(3, 8)] * 12 + [(3, 4)]
    for memory in model.memories:
        assert (memory.length, memory.clamp, memory.equal_context) == (20, 12, True)

    plain, nats = MeanModel(VOCABULARY).eval(), 0.0
    for column in tokens[:303].view(3, 101):
        for end in range(1, 101):
            context = column[max(0, end - 20) : end][None]
            each, _ = plain.log_likelihood(
                context, torch.cat([context[:, 1:], column[None, end : end + 1]], 1)
            )
            nats -= each[0, -1].double().item()
    assert score.positions == 300
    assert score.nats == pytest.approx(nats, abs=300 * 1e-6)


def test_xl_is_the_published_one():
    assert (evaluate.XL_SEGMENT, evaluate.XL_MEMORY, evaluate.XL_CLAMP) == (64, 640, 400)


def test_xl_refuses_a_model_without_a_memory(tokens):
    with pytest.raises(ValueError, match=r"protocol=xl needs .* model\.family=transformer_xl"):
        evaluate.xl(MeanModel(VOCABULARY), tokens, columns=10)


@pytest.mark.parametrize("columns", [1001, 3000])
def test_too_many_columns_are_refused(tokens, columns):
    with pytest.raises(ValueError, match=rf"recipe\.evaluation_batch={columns}; .* up to 1000"):
        evaluate.segments(MeanModel(VOCABULARY), tokens, length=48, columns=columns)


def test_neither_dropout_nor_gradients_and_the_mode_is_restored(tokens):
    model = MeanModel(VOCABULARY)
    for training in (True, False):
        model.train(training)
        first = evaluate.sliding(model, tokens[:100], window=48)
        assert first == evaluate.sliding(model, tokens[:100], window=48)
        assert model.training is training
    assert model.embed.grad is None


def test_sums_are_in_double_precision():
    """In single precision a sum that has reached 2**25 no longer grows by 1."""

    class Certain(MeanModel):
        def forward(self, inputs_bl, targets_bl, *, last_only=False, memory=None):
            value = -(2.0**25) if not last_only else -1.0
            shape = (inputs_bl.shape[0], 1)
            return torch.full(shape, value), None

    score = evaluate.sliding(Certain(5), torch.zeros(1000, dtype=torch.long), window=10)
    assert score.nats == 2.0**25 + 989


def test_perplexity_of_a_score():
    assert Score(nats=200 * math.log(7), positions=200).perplexity == pytest.approx(7)
    assert Score(nats=1e6, positions=1).perplexity == math.inf
    assert math.isnan(Score(nats=math.nan, positions=3).perplexity)


def test_unigram_perplexity_by_hand():
    """The first token is not predicted; what was never seen counts as seen once."""
    counts = np.array([5, 4, 0, 1])
    score = evaluate.unigram(counts, np.array([3, 0, 1, 2], np.int32))
    assert score.positions == 3
    expected = -math.log(0.5) - math.log(0.4) - math.log(0.1)
    assert score.nats == pytest.approx(expected)
