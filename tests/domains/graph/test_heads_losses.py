"""Heads and losses against the reference's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domains.graph.config import ModelConfig
from domains.graph.edges import sorted_membership
from domains.graph.heads import GraphGymHead, PlainHead, Readout, SanHead, pool
from domains.graph.losses import binary_cross_entropy, class_weights, weighted_cross_entropy
from domains.graph.module import task_loss

from .helpers import graph_of, small_model, small_set, starts_of, stored

CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def tensor(name: str) -> Tensor:
    return torch.from_numpy(stored("graph_heads_losses_metrics")[name])


def config(**options: Any) -> ModelConfig:
    return ModelConfig(**{"width": 16, "heads": 4, "encoding": "none", **options})


@pytest.mark.parametrize(
    ("case", "head", "pooling"),
    [
        ("head_graph_mlp1", GraphGymHead(config(head_layers=1), 10), "mean"),
        ("head_graph_mlp2", GraphGymHead(config(head_layers=2), 10), "mean"),
        ("head_node_mlp3", GraphGymHead(config(head_layers=3), 6), None),
        ("head_san", SanHead(config(head="san", head_layers=3), 1), "sum"),
    ],
)
def test_heads_equal_the_reference(case: str, head: nn.Module, pooling: str | None):
    """Parameters in the same order on both sides: hidden layers, then the last map."""
    vectors = stored("graph_heads_losses_metrics")
    theirs = [name for name in vectors if name.startswith(f"{case}.param.")]
    for parameter, name in zip(head.parameters(), theirs, strict=True):
        parameter.data = torch.from_numpy(vectors[name])
    x = tensor("heads.x").requires_grad_()
    graph = tensor("heads.batch")
    hidden = x
    if pooling:
        starts = starts_of(graph.bincount().tolist())
        hidden = pool(x, sorted_membership(graph, starts), pooling)
    out = head(hidden)
    torch.testing.assert_close(out, tensor(f"{case}.out"), **CLOSE)
    (out * tensor(f"{case}.w")).sum().backward()
    torch.testing.assert_close(x.grad, tensor(f"{case}.grad_x"), **CLOSE)
    for parameter, name in zip(head.parameters(), theirs, strict=True):
        grad = torch.from_numpy(vectors[name.replace(".param.", ".grad.")])
        torch.testing.assert_close(parameter.grad, grad, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


def test_a_dead_row_of_the_graphgym_head_gets_no_gradient():
    """On purpose unlike the reference, whose gradient there is 1e12 times as large as it comes."""
    head = GraphGymHead(config(head_layers=2), 3)
    head.hidden[0].weight.data.zero_()
    head.hidden[0].bias.data.zero_()
    x = torch.randn(4, 16, requires_grad=True)
    head(x).square().sum().backward()
    for parameter in [x, *head.parameters()]:
        assert parameter.grad.abs().max() < 1e3


def test_the_plain_head_drops_before_each_map_and_normalises_nothing():
    head = PlainHead(config(head="plain", head_layers=2, activation="gelu", dropout=0.5), 3)
    x = torch.randn(5, 16)
    assert not torch.equal(head(x), head(x))
    head.eval()
    torch.testing.assert_close(head(x), head.out(F.gelu(head.hidden[0](x))))


def test_the_readout_pools_for_tasks_on_graphs_alone():
    sizes = (1, 4, 2)
    nodes = sorted_membership(graph_of(sizes), starts_of(sizes))
    x = torch.randn(7, 16)
    for task, rows, columns in (
        ("graph_regression", 3, 1),
        ("graph_classification", 3, 4),
        ("multilabel", 3, 10),
        ("node_classification", 7, 1),
        ("contact", 7, 16),
    ):
        dataset = small_set(task)
        assert Readout(small_model(dataset), dataset)(x, nodes).shape == (rows, columns), task
    torch.testing.assert_close(pool(x, nodes, "mean")[1], x[1:5].mean(0))
    torch.testing.assert_close(pool(x, nodes, "sum")[2], x[5:].sum(0))


@pytest.mark.parametrize(
    "case", ["wce_multi", "wce_multi_absent", "wce_binary", "wce_binary_all_zero"]
)
def test_weighted_cross_entropy_equals_the_reference(case: str):
    logits = tensor(f"{case}.logits")
    logits = (logits[:, None] if logits.dim() == 1 else logits).requires_grad_()
    loss = weighted_cross_entropy(logits, tensor(f"{case}.target").long())
    torch.testing.assert_close(loss, tensor(f"{case}.loss").squeeze(), **CLOSE)
    loss.backward()
    expected = tensor(f"{case}.grad_logits").view_as(logits)
    torch.testing.assert_close(logits.grad, expected, **CLOSE)


def test_a_batch_of_one_class_teaches_nothing():
    """On purpose unlike the reference, which divides 0 by 0: one such batch would end a run."""
    logits = tensor("wce_multi_single.logits").requires_grad_()
    assert tensor("wce_multi_single.loss").isnan()
    loss = weighted_cross_entropy(logits, tensor("wce_multi_single.target").long())
    loss.backward()
    assert loss == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_class_weights_by_hand():
    labels = torch.tensor([0, 0, 0, 2])
    assert class_weights(labels, 4, torch.float64).tolist() == [0.25, 0.0, 0.75, 0.0]


def test_the_two_forms_of_the_weighted_loss_divide_by_different_numbers():
    """Two classes as two logits and as one: 2 V / sum(weights) apart, by hand."""
    labels = torch.tensor([0, 0, 0, 1])
    one = torch.randn(4, 1)
    two = torch.cat([torch.zeros(4, 1), one], dim=1)
    weights = torch.tensor([0.25, 0.25, 0.25, 0.75])
    single = F.cross_entropy(two, labels, reduction="none")
    torch.testing.assert_close(weighted_cross_entropy(two, labels), (weights * single).sum() / 1.5)
    torch.testing.assert_close(weighted_cross_entropy(one, labels), (weights * single).sum() / 4)


def test_entries_without_a_target_are_dropped():
    logits = torch.randn(3, 2, requires_grad=True)
    targets = torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [0.0, float("nan")]])
    loss = binary_cross_entropy(logits, targets)
    known = [(0, 0, 1.0), (0, 1, 0.0), (1, 1, 1.0), (2, 0, 0.0)]
    single = [
        F.binary_cross_entropy_with_logits(logits[i, j], torch.tensor(y)) for i, j, y in known
    ]
    torch.testing.assert_close(loss, sum(single) / 4)
    loss.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1, 0] == logits.grad[2, 1] == 0.0


def test_contacts_are_scored_by_dot_products():
    hidden = torch.randn(4, 3)
    batch = SimpleNamespace(
        pairs=torch.tensor([[0, 1, 0], [1, 0, 3]]), pair_label=torch.tensor([1.0, 1.0, 0.0])
    )
    scores = torch.stack([hidden[0] @ hidden[1], hidden[1] @ hidden[0], hidden[0] @ hidden[3]])
    expected = F.binary_cross_entropy_with_logits(scores, batch.pair_label)
    torch.testing.assert_close(task_loss("contact", hidden, batch), expected)
