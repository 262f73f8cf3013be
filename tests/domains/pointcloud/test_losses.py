"""Lovász-Softmax against the reference and against a slow version."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from domains.pointcloud.batch import IGNORED
from domains.pointcloud.lovasz import cross_entropy, lovasz_softmax

from .clouds import stored


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_lovasz_equals_the_reference(case):
    given = stored("lovasz")
    logits = given["logits"].clone().requires_grad_()
    loss = lovasz_softmax(logits, given[f"{case}_labels"])
    loss.backward()
    torch.testing.assert_close(loss, given[f"{case}_loss"], atol=1e-6, rtol=0)
    torch.testing.assert_close(logits.grad, given[f"{case}_grad_logits"], atol=1e-7, rtol=0)


def jaccard_loss(wrong: set[int], truth: set[int]) -> float:
    """One minus the IoU of a class when the points in `wrong` are predicted wrongly."""
    predicted = (truth - wrong) | (wrong - truth)
    return 1.0 - len(truth & predicted) / len(truth | predicted)


def slow_lovasz(probability: torch.Tensor, label: torch.Tensor) -> float:
    """The definition: errors from the largest on, each times what it adds to the Jaccard loss."""
    losses = []
    for number in label.unique().tolist():
        truth = {point for point, own in enumerate(label.tolist()) if own == number}
        error = ((label == number).double() - probability[:, number]).abs()
        wrong: set[int] = set()
        total = 0.0
        for point in error.argsort(descending=True).tolist():
            before = jaccard_loss(wrong, truth)
            wrong.add(point)
            total += float(error[point]) * (jaccard_loss(wrong, truth) - before)
        losses.append(total)
    return sum(losses) / len(losses)


def test_lovasz_equals_its_definition():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    label = torch.randint(0, 5, (40,), generator=generator)
    expected = slow_lovasz(logits.softmax(1), label)
    assert lovasz_softmax(logits, label).item() == pytest.approx(expected, abs=1e-12)


def test_a_perfect_prediction_costs_nothing():
    label = torch.tensor([0, 1, 2, 2])
    loss = lovasz_softmax(100.0 * F.one_hot(label, 5).float(), label)
    assert loss.item() == pytest.approx(0.0, abs=1e-30)


@pytest.mark.parametrize("loss", [lovasz_softmax, cross_entropy])
def test_ignored_points_change_nothing(loss):
    logits = torch.randn(30, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    label = torch.arange(30) % 17 + IGNORED
    found = loss(logits, label)
    torch.testing.assert_close(found, loss(logits[label != IGNORED], label[label != IGNORED]))
    (grad,) = torch.autograd.grad(found, logits)
    assert (grad[label == IGNORED] == 0.0).all()


@pytest.mark.parametrize("loss", [lovasz_softmax, cross_entropy])
def test_a_batch_without_labels_has_no_loss_and_no_nan(loss):
    logits = torch.randn(5, 16, requires_grad=True)
    found = loss(logits, torch.full((5,), IGNORED))
    found.backward()
    assert found.item() == 0.0
    assert (logits.grad == 0.0).all()


def test_cross_entropy_is_that_of_torch():
    logits, label = torch.randn(30, 16), torch.arange(30) % 17 + IGNORED
    expected = F.cross_entropy(logits, label, ignore_index=IGNORED)
    torch.testing.assert_close(cross_entropy(logits, label), expected)


def test_half_precision_is_scored_in_full():
    logits, label = torch.randn(30, 16), torch.arange(30) % 16
    half = logits.bfloat16()
    torch.testing.assert_close(lovasz_softmax(half, label), lovasz_softmax(half.float(), label))
    assert cross_entropy(half, label).dtype == torch.float32
