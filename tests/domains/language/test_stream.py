"""Columns, segments and the order in which they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from domains.language.stream import EndlessOrder, Segments


def reference_batches(tokens: torch.Tensor, columns: int, length: int) -> list[tuple]:
    """`LMOrderedIterator` of Transformer-XL, spelt out: time first."""
    steps = len(tokens) // columns
    data = tokens[: steps * columns].view(columns, steps).t()
    batches = []
    for start in range(0, steps - 1, length):
        size = min(length, steps - 1 - start)
        batches.append((data[start : start + size], data[start + 1 : start + 1 + size]))
    return batches


@pytest.mark.parametrize(
    ("size", "columns", "length"), [(1000, 7, 20), (100, 4, 8), (64, 1, 63), (9, 4, 5)]
)
def test_segments_are_those_of_the_reference(size, columns, length):
    tokens = np.arange(size, dtype=np.int32)
    cut = Segments("train", tokens, columns=columns, length=length)
    expected = reference_batches(torch.arange(size), columns, length)
    assert len(cut) == len(expected)
    for number, (inputs, targets) in enumerate(expected):
        batch = cut[number]
        assert torch.equal(batch.inputs, inputs.t())
        assert torch.equal(batch.targets, targets.t())
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert batch.reset is (number == 0)
        assert batch.split == "train"


@pytest.mark.parametrize(
    ("columns", "length", "steps"), [(96, 256, 4201), (56, 384, 4801), (60, 150, 11_470)]
)
def test_steps_of_a_pass_through_wikitext103_are_the_published_ones(columns, length, steps):
    tokens = np.broadcast_to(np.int32(0), 103_227_021)
    assert len(Segments("train", tokens, columns=columns, length=length)) == steps


def test_a_stream_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=r"'train' has 7 tokens, too few for 4 columns"):
        Segments("train", np.zeros(7, np.int32), columns=4, length=2)


def test_epochs_go_on_where_the_one_before_ended_and_wrap_round():
    order = EndlessOrder(segments=7, steps=5)
    read = []
    for epoch in range(4):
        order.set_epoch(epoch)
        read += list(order)
    assert read == [step % 7 for step in range(20)]
    assert len(order) == 5


def test_an_epoch_may_be_longer_than_a_pass():
    assert list(EndlessOrder(segments=3, steps=8, epoch=1)) == [2, 0, 1, 2, 0, 1, 2, 0]


def test_any_epoch_can_be_the_first():
    order = EndlessOrder(segments=4201, steps=4000)
    order.set_epoch(124)
    assert list(order) == list(EndlessOrder(4201, 4000, epoch=124))
    assert next(iter(order)) == 124 * 4000 % 4201
