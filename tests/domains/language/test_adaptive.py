"""The adaptive softmax: a probability model, equal to its formula, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domains.language import adaptive
from domains.language.adaptive import AdaptiveSoftmax, linear_cross_entropy

from .networks import LargestTensor

WIDTH, WORDS, CUTOFFS = 6, 40, [9, 15, 31]


def softmax(cutoffs: list[int] = CUTOFFS, *, tied: bool = True) -> tuple[AdaptiveSoftmax, Tensor]:
    """With biases away from 0, and the word vectors that are handed over."""
    torch.manual_seed(0)
    made = AdaptiveSoftmax(WIDTH, WORDS, cutoffs, tied=tied, init_sd=0.5).double()
    with torch.no_grad():
        made.bias.normal_()
        made.cluster_bias.normal_()
    words = torch.randn(WORDS, WIDTH, dtype=torch.float64, requires_grad=True)
    return made, words


def explicit(made: AdaptiveSoftmax, words: Tensor, hidden: Tensor, cutoffs: list[int]) -> Tensor:
    """(T, V) log-probabilities by the formula, with whole matrices."""
    edges = [*cutoffs, WORDS]
    weight = words if made.weight is None else made.weight
    scores = hidden @ weight.T + made.bias
    clusters = hidden @ made.cluster_weight.T + made.cluster_bias
    head = torch.cat([scores[:, : edges[0]], clusters], dim=1).log_softmax(-1)
    parts = [head[:, : edges[0]]]
    for i in range(1, len(edges)):
        # As published: the entry of cluster i is the i-th from the end.
        entry = head[:, -i, None]
        parts.append(entry + scores[:, edges[i - 1] : edges[i]].log_softmax(-1))
    return torch.cat(parts, dim=1)


@pytest.fixture(params=[2**24, 50, 1], ids=["one block", "some blocks", "a row a block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(adaptive, "BLOCK_SCORES", request.param)
    return request.param


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cutoffs", [CUTOFFS, [20], []])
def test_equals_the_explicit_softmax(block: int, cutoffs: list[int], tied: bool) -> None:
    """Values and all gradients, every word of the vocabulary being the target once."""
    made, words = softmax(cutoffs, tied=tied)
    hidden = torch.randn(WORDS, WIDTH, dtype=torch.float64, requires_grad=True)
    targets = torch.randperm(WORDS)
    weights = torch.rand(WORDS, dtype=torch.float64)
    learned = (p for p in made.parameters() if p.requires_grad)
    wanted = [hidden, *([words] if tied else []), *learned]
    expected = explicit(made, words, hidden, cutoffs).gather(1, targets[:, None])[:, 0]
    found = made(hidden, targets, words)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    gradients = [
        torch.autograd.grad((values * weights).sum(), wanted, allow_unused=True)
        for values in (found, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_probabilities_of_the_vocabulary_sum_to_one() -> None:
    made, words = softmax()
    hidden = 3.0 * torch.randn(5, WIDTH, dtype=torch.float64)
    every = torch.arange(WORDS).repeat(5)
    found = made(hidden.repeat_interleave(WORDS, 0), every, words).view(5, WORDS)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(5, dtype=torch.float64))


def test_the_entries_of_the_clusters_stand_in_reverse_order() -> None:
    """The last entry of the head is that of the first cluster."""
    made, words = softmax()
    hidden = torch.zeros(3, WIDTH, dtype=torch.float64)
    firsts = torch.tensor(CUTOFFS)
    before = made(hidden, firsts, words)
    with torch.no_grad():
        made.cluster_bias[-1] += 5.0
    risen = made(hidden, firsts, words) - before
    assert risen[0] > 0.0
    assert (risen[1:] < 0.0).all()


def test_cutoffs_behind_the_vocabulary_fall_away() -> None:
    made = AdaptiveSoftmax(WIDTH, WORDS, [9, 40, 100], tied=True, init_sd=0.02)
    assert made.sizes == [9, 31]
    assert made.cluster_weight.shape == (1, WIDTH)


def test_targets_of_one_cluster_alone_leave_the_others_without_gradient() -> None:
    made, words = softmax()
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    made(hidden, torch.tensor([1, 0, 8, 3]), words).sum().backward()
    assert words.grad is not None
    assert words.grad[:9].all()
    assert not words.grad[9:].any()
    assert made.cluster_bias.grad is not None
    assert made.cluster_bias.grad.all()


def test_no_matrix_of_tokens_and_words_is_ever_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "BLOCK_SCORES", 2000)
    vocabulary, tokens = 1000, 600
    made = AdaptiveSoftmax(2, vocabulary, [100, 400], tied=True, init_sd=0.1)
    words = torch.randn(vocabulary, 2, requires_grad=True)
    hidden = torch.randn(tokens, 2, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))
    with LargestTensor() as seen:
        made(hidden, targets, words).sum().backward()
    assert seen.numbers == 2 * vocabulary  # weights and their gradient, or a block


def test_half_precision_is_widened_for_the_sum() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 16), torch.randn(300, 16)
    targets = torch.randint(300, (20,))
    exact = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, torch.zeros(300), targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0.02)
