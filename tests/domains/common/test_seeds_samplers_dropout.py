"""Seeds, batch order and dropout that all domains may use."""

from __future__ import annotations

import pytest
import torch

from domains.common.dropout import Dropout, dropout
from domains.common.samplers import (
    NumberedBatches,
    Remaining,
    SequentialBatches,
    ShuffledBatches,
)
from domains.common.seeds import derive


def test_seeds_differ_by_seed_and_purpose_and_stay():
    seeds = [derive(s, *p) for s in (0, 1) for p in ((), ("order",), ("order", 1), ("order", "1"))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(0, "order", 1) == 8444176558443591710


def test_shuffled_batches_are_a_function_of_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ShuffledBatches(10, 4, seed)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert [len(b) for b in batches] == [4, 4, 2]
        assert len(sampler) == 3
        return torch.cat(batches).tolist()

    torch.manual_seed(0)
    first = order(0, 5)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert order(0, 5) == first
    assert sorted(first) == list(range(10))
    assert order(0, 6) != first
    assert order(1, 5) != first
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_sequential_batches():
    assert [b.tolist() for b in SequentialBatches(5, 2)] == [[0, 1], [2, 3], [4]]
    assert len(SequentialBatches(5, 2)) == 3


def test_what_remains_of_an_epoch():
    whole, rest = (
        Remaining(NumberedBatches(ShuffledBatches(10, 4, 0, epoch=5)), 5, batch) for batch in (0, 2)
    )
    first = list(whole)
    assert len(rest) == len(first) == 3, "it is the length of whole epochs that counts"
    for _ in range(2):  # reading changes nothing
        (last,) = rest
        assert (last.epoch, last.number) == (5, 2)
        assert torch.equal(last.indices, first[2].indices)
    rest.set_epoch(6)
    assert [(one.epoch, one.number) for one in rest] == [(6, 0), (6, 1), (6, 2)]
    rest.set_epoch(5)
    assert len(list(rest)) == 1
    assert list(Remaining(SequentialBatches(4, 2), 0, 2)) == []


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_has_the_rate_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    x = torch.ones(400, 1001)
    out = dropout(x, rate)
    kept = out.ne(0)
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)
    torch.testing.assert_close(
        out[kept], torch.full_like(out[kept], 1 / (1 - rate)), rtol=1e-3, atol=0
    )
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    # Neighbours share a random word and must not share their fate.
    both = (kept[:, 1:] & kept[:, :-1]).float().mean().item()
    assert both == pytest.approx((1 - rate) ** 2, abs=0.01)


def test_dropout_passes_gradients_where_it_kept():
    x = torch.ones(50, 3, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.3)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_dropout_is_the_identity_outside_training_and_at_rate_zero():
    x = torch.randn(5, 5)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x
    with pytest.raises(ValueError, match="dropout rate"):
        Dropout(1.0)


def test_a_rate_that_rounds_to_one_drops_without_dividing_by_zero():
    out = Dropout(0.999999)(torch.ones(1000))
    assert out.isfinite().all()
    assert out.ne(0).float().mean() < 0.01
