"""Scores: by hand, against scikit-learn or a few independent lines, against the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    mean_absolute_error,
)
from torch import Tensor

from domains.graph.metrics import (
    AveragePrecision,
    ClassScore,
    ContactRanking,
    MeanError,
    Score,
    average_precision,
    make_score,
)
from domains.graph.module import SplitScore
from domains.graph.ranking import contact_ranks

from .helpers import batch_of, small_set, starts_of, stored

NAN = float("nan")


def vectors(name: str) -> Tensor:
    return torch.from_numpy(stored("graph_heads_losses_metrics")[name])


def scored(score: Score, output: Tensor, y: Tensor, batches: int = 3) -> float:
    """The primary value, the split cut into uneven batches."""
    for part in torch.arange(len(y)).tensor_split([1, len(y) // 2][: batches - 1]):
        score.update(output[part], SimpleNamespace(y=y[part]))
    return float(score.compute()[score.name])


def one_hot(predicted: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(predicted, classes).float()


def test_mean_error():
    output, y = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1.5, 2.0], [0.0, 4.0]])
    assert scored(MeanError(), output, y, 1) == pytest.approx((0.5 + 0 + 3 + 1) / 4)
    output, y = torch.randn(30, 11), torch.randn(30, 11)
    assert scored(MeanError(), output, y) == pytest.approx(mean_absolute_error(y, output), rel=1e-6)


def test_plain_accuracy():
    logits, y = torch.randn(40, 4), torch.randint(4, (40,))
    expected = 100 * accuracy_score(y, logits.argmax(1))
    assert scored(ClassScore("accuracy", "micro", 4), logits, y) == pytest.approx(expected)


def test_accuracy_as_a_mean_over_classes_by_hand():
    """Class 0: 3 of 4, class 1: 0 of 1, class 2 only predicted: 0, class 3 nowhere."""
    y = torch.tensor([0, 0, 0, 0, 1])
    logits = one_hot(torch.tensor([0, 0, 0, 1, 2]), 4)
    value = scored(ClassScore("accuracy", "macro", 4), logits, y)
    assert value == pytest.approx(100 * (0.75 + 0 + 0) / 3)


@pytest.mark.parametrize(
    "case", ["sbm_multi", "sbm_multi_predicted_only", "sbm_multi_top_absent", "sbm_multi_gap"]
)
def test_accuracy_as_a_mean_over_classes_equals_the_reference(case: str):
    """Its value for a class in the middle that occurs nowhere is an artefact: scikit-learn's."""
    y, predicted = vectors(f"{case}.target").long(), vectors(f"{case}.pred").long()
    name = f"{case}.{'balanced_accuracy' if case.endswith('gap') else 'accuracy_sbm'}"
    value = scored(ClassScore("accuracy", "macro", 6), one_hot(predicted, 6), y)
    assert value == pytest.approx(100 * float(vectors(name)), abs=1e-4)


def test_accuracy_from_one_logit():
    probability = vectors("sbm_binary.probability")
    y = vectors("sbm_binary.target").long()
    logits = probability.logit()[:, None]
    value = scored(ClassScore("accuracy", "macro", 2), logits, y)
    assert value == pytest.approx(100 * float(vectors("sbm_binary.accuracy_sbm")), abs=1e-4)
    expected = balanced_accuracy_score(y, probability > 0.5)
    assert value == pytest.approx(100 * expected, abs=1e-4)
    # A probability of exactly one half is class 0.
    assert (
        scored(ClassScore("accuracy", "macro", 2), torch.zeros(1, 1), torch.tensor([0]), 1) == 100
    )


def test_f1_by_hand():
    """Class 0: 2 right, 1 missed, 1 too many: 2/3. Class 1: none right: 0. Class 2 nowhere."""
    y = torch.tensor([0, 0, 0, 1])
    logits = one_hot(torch.tensor([0, 0, 1, 0]), 3)
    assert scored(ClassScore("f1", "macro", 3), logits, y) == pytest.approx((2 / 3 + 0) / 2)


def test_f1_equals_the_reference():
    y, predicted = vectors("f1.target").long(), vectors("f1.pred").long()
    value = scored(ClassScore("f1", "macro", 8), one_hot(predicted, 8), y)
    assert value == pytest.approx(float(vectors("f1.macro_f1")), abs=1e-6)
    expected = f1_score(y, predicted, average="macro", zero_division=0)
    assert value == pytest.approx(expected, abs=1e-6)


def test_average_precision_by_hand():
    """Falling scores find a hit, a miss, a hit: (1 + 2/3) / 2. A tie counts as one step."""
    y = torch.tensor([[1.0, 1.0, 1.0, NAN], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
    outputs = torch.tensor([[3.0, 1.0, 0.0, 9.0], [2.0, 1.0, 0.0, 5.0], [1.0, 0.0, 0.0, 7.0]])
    # The third label has no negative; the fourth has its only hit behind a miss: 1/2.
    expected = ((1 + 2 / 3) / 2 + 1 / 2 + 1 / 2) / 3
    assert scored(AveragePrecision(), outputs, y) == pytest.approx(expected)


def test_average_precision_equals_the_reference():
    y, outputs = vectors("ap.target").float(), vectors("ap.score").float()
    value = scored(AveragePrecision(), outputs, y)
    assert value == pytest.approx(float(vectors("ap.ap")), abs=1e-6)
    single = vectors("ap.ap_per_class")
    assert value == pytest.approx(float(single[~single.isnan()].mean()), abs=1e-6)


def test_average_precision_depends_on_the_order_of_the_scores_alone():
    """Large logits, which a sigmoid in single precision would make equal, stay apart."""
    y = torch.randint(2, (60, 3)).float()
    outputs = torch.randn(60, 3)
    expected = [average_precision_score(y[:, i], outputs[:, i]) for i in range(3)]
    for factor in (1e-3, 1.0, 1e3):
        value = average_precision(outputs * factor + 100.0, y)
        ranked = [
            average_precision_score(y[:, i], outputs[:, i] * factor + 100.0) for i in range(3)
        ]
        assert value == pytest.approx(sum(ranked) / 3, abs=1e-6)
    assert average_precision(outputs * 1e3, y) == pytest.approx(sum(expected) / 3, abs=1e-6)


def test_no_label_that_counts_has_no_average_precision():
    assert average_precision(torch.randn(4, 2), torch.ones(4, 2)).isnan()


def plain_rank(scores: Tensor, i: int, j: int, left_out: set[int]) -> float:
    own = scores[i, j]
    others = [scores[i, k] for k in range(len(scores)) if k != j and k not in left_out]
    return 1 + sum(float(s > own) + 0.5 * float(s == own) for s in others)


def test_ranks_equal_a_loop_over_the_pairs():
    dataset = small_set("contact")
    batch = batch_of(dataset, (6, 1, 9, 4))
    hidden = torch.randn(20, 5).round()  # with ties
    ranks = contact_ranks(hidden, batch)
    expected = []
    for (i, j), graph in zip(
        batch.contacts.t().tolist(), batch.contact_graph.tolist(), strict=True
    ):
        first, last = batch.ptr[graph : graph + 2].tolist()
        part = hidden[first:last]
        scores = part @ part.T
        partners = {
            k - first for h, k in batch.contacts.t().tolist() if h == i and first <= k < last
        }
        i, j = i - first, j - first
        cases = (set(), partners, partners | {i})
        expected.append([plain_rank(scores, i, j, left_out) for left_out in cases])
    for rank, wanted in zip(ranks, torch.tensor(expected).unbind(1), strict=True):
        torch.testing.assert_close(rank, wanted)


def test_ranks_by_hand():
    """Three nodes on a line at 1, 2, 3: products are 1 2 3 / 2 4 6 / 3 6 9; contacts 0-1, 0-2."""
    hidden = torch.tensor([[1.0], [2.0], [3.0]])
    contacts = torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
    batch = SimpleNamespace(
        contacts=contacts, contact_graph=torch.zeros(4, dtype=torch.long), ptr=torch.tensor([0, 3])
    )
    ranks = contact_ranks(hidden, batch)
    assert ranks.raw.tolist() == [2, 3, 1, 3]
    assert ranks.filtered.tolist() == [1, 3, 1, 3]
    assert ranks.filtered_noself.tolist() == [1, 2, 1, 2]


def test_a_score_that_is_no_number_ranks_last():
    batch = SimpleNamespace(
        contacts=torch.tensor([[0], [1]]), contact_graph=torch.zeros(1).long(), ptr=starts_of([4])
    )
    assert contact_ranks(torch.full((4, 2), NAN), batch).raw.tolist() == [4]


def stored_batch(data: Any, number: int) -> tuple[Tensor, SimpleNamespace]:
    """Head output and batch of one of the two batches of the reference."""
    hidden, contacts, graphs, pairs, sizes = [], [], [], [], []
    weight = torch.from_numpy(data["mrr.param.layer_post_mp.model.0.model.weight"])
    bias = torch.from_numpy(data["mrr.param.layer_post_mp.model.0.model.bias"])
    for index, graph in enumerate(data["mrr.graphs_of_batch"][number]):
        x = torch.from_numpy(data[f"mrr.graph{graph}.x"])
        labelled = torch.from_numpy(data[f"mrr.graph{graph}.edge_index_labeled"]).long()
        positive = torch.from_numpy(data[f"mrr.graph{graph}.edge_label"]) == 1
        first = sum(sizes)
        hidden.append(x @ weight.T + bias)
        contacts.append(first + labelled[:, positive])
        graphs += [index] * int(positive.sum())
        pairs.append(first + labelled)
        sizes.append(len(x))
    batch = SimpleNamespace(
        contacts=torch.cat(contacts, 1),
        contact_graph=torch.tensor(graphs, dtype=torch.long),
        pairs=torch.cat(pairs, 1),
        ptr=starts_of(sizes),
        num_graphs=len(sizes),
    )
    return torch.cat(hidden), batch


def test_contact_ranking_equals_the_reference():
    data = stored("graph_heads_losses_metrics")
    whole = ContactRanking()
    kinds = {"mrr": "raw", "mrr_filtered": "filtered", "mrr_filtered_noself": "filtered_noself"}
    hits = {f"hits{k}": f"hits_at_{k}_raw" for k in (1, 3, 10)}
    for number in range(2):
        hidden, batch = stored_batch(data, number)
        assert batch.pairs.shape[1] == data["mrr.labelled_edges_of_batch"][number]
        alone = ContactRanking()
        for score in (alone, whole):
            score.update(hidden, batch)
        for ours, theirs in {**kinds, **hits}.items():
            expected = float(data[f"mrr.batch{number}.{theirs}"])
            assert float(alone.compute()[ours]) == pytest.approx(expected, abs=1e-6), ours
    for ours, theirs in kinds.items():
        expected = float(data[f"mrr.split.{theirs}"])
        assert float(whole.compute()[ours]) == pytest.approx(expected, abs=1e-6), ours


def test_the_mean_over_contacts_does_not_depend_on_the_batches():
    data = stored("graph_heads_losses_metrics")
    values = {}
    for order in ((0, 1), (1, 0)):
        score = ContactRanking()
        reciprocal: list[Tensor] = []
        for number in order:
            hidden, batch = stored_batch(data, number)
            score.update(hidden, batch)
            reciprocal.append(contact_ranks(hidden, batch).raw.reciprocal())
        values[order] = float(score.compute()["mrr_per_contact"])
        assert values[order] == pytest.approx(float(torch.cat(reciprocal).mean()))
    assert values[(0, 1)] == pytest.approx(values[(1, 0)])


def test_a_score_forgets_what_came_before_its_reset():
    for task in ("graph_regression", "graph_classification", "node_classification", "multilabel"):
        dataset = small_set(task)
        score = make_score(dataset)
        rows, columns = 8, dataset.outputs
        y = {
            "graph_regression": torch.randn(rows, 1),
            "multilabel": torch.randint(2, (rows, 10)).float(),
        }.get(task, torch.randint(2, (rows,)))
        output = torch.randn(rows, columns)
        once = scored(score, output, y)
        score.update(-output, SimpleNamespace(y=y))
        score.reset()
        assert scored(score, output, y) == once


@pytest.mark.parametrize(
    "task", ["graph_regression", "graph_classification", "node_classification", "multilabel"]
)
def test_a_score_goes_on_from_what_another_has_summed_up(task):
    dataset = small_set(task)
    targets = {
        "graph_regression": torch.randn(8, 1),
        "multilabel": torch.randint(2, (8, 10)).float(),
    }
    y = targets.get(task, torch.randint(2, (8,)))
    output = torch.randn(8, dataset.outputs)
    whole, first, rest = (SplitScore(dataset, "train") for _ in range(3))
    for number, rows in enumerate((slice(0, 3), slice(3, 8))):
        batch = SimpleNamespace(y=y[rows])
        for score in (whole, rest if number else first):
            score.update(output[rows], output[rows].sum(), batch)
        if number == 0:
            rest.load_sums(first.sums())
    assert rest.compute() == whole.compute()


def test_each_task_has_its_score():
    kinds = {task: type(make_score(small_set(task))) for task in ("multilabel", "contact")}
    assert kinds == {"multilabel": AveragePrecision, "contact": ContactRanking}
    assert make_score(small_set("graph_classification")).score.average == "micro"
    assert make_score(small_set("node_classification")).score.average == "macro"
    assert make_score(small_set("node_classification", metric="f1")).name == "f1"
