"""Negative pairs of PCQM-Contact."""

from __future__ import annotations

import torch

from domains.graph.contacts import NEGATIVES, with_negatives


def drawn(contacts, graph, ptr, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return with_negatives(
        torch.tensor(contacts).t().reshape(2, -1), torch.tensor(graph, dtype=torch.int64),
        torch.tensor(ptr), generator,
    )  # fmt: skip


CONTACTS = [[0, 7], [7, 0], [1, 7], [7, 1], [12, 20], [20, 12]]
GRAPH, PTR = [0, 0, 0, 0, 2, 2], [0, 10, 12, 25]


def test_two_negatives_a_contact_with_the_same_first_node():
    pairs, label = drawn(CONTACTS, GRAPH, PTR)
    assert label.tolist() == [1.0] * 6 + [0.0] * 12
    assert pairs[:, :6].t().tolist() == CONTACTS
    heads = [pair[0] for pair in CONTACTS for _ in range(NEGATIVES)]
    assert pairs[0, 6:].tolist() == heads


def test_negatives_lie_in_their_graph_are_no_contacts_and_do_not_repeat():
    for seed in range(200):
        pairs, label = drawn(CONTACTS, GRAPH, PTR, seed)
        negatives = [tuple(pair) for pair in pairs[:, label == 0].t().tolist()]
        assert not set(negatives) & {tuple(pair) for pair in CONTACTS}
        assert len(set(negatives)) == len(negatives)
        for head, tail in negatives:
            first, last = (0, 10) if head < 10 else (12, 25)
            assert first <= tail < last


def test_every_other_node_is_drawn_equally_often_the_node_itself_too():
    """Contact (0, 7) alone in a graph of ten: nine candidates, two different ones a draw."""
    counts = torch.zeros(10)
    for seed in range(1500):
        pairs, label = drawn([[0, 7]], [0], [0, 10], seed)
        counts += torch.bincount(pairs[1, label == 0], minlength=10)
    assert counts[7] == 0
    others = counts[torch.arange(10) != 7]
    expected = 1500 * 2 / 9
    assert ((others - expected).abs() < 4 * expected**0.5).all()


def test_a_small_graph_gives_as_many_negatives_as_it_has():
    """Three nodes, 0 in contact with two of them: (0, 0) is the only negative for four places."""
    pairs, label = drawn([[0, 1], [0, 2]], [0, 0], [0, 3])
    assert pairs[:, label == 0].t().tolist() == [[0, 0]]


def test_graphs_without_contacts_give_nothing():
    pairs, label = drawn([], [], [0, 3, 5])
    assert pairs.shape == (2, 0)
    assert label.shape == (0,)


def test_the_generator_decides_everything():
    assert torch.equal(drawn(CONTACTS, GRAPH, PTR, 1)[0], drawn(CONTACTS, GRAPH, PTR, 1)[0])
    assert not torch.equal(drawn(CONTACTS, GRAPH, PTR, 1)[0], drawn(CONTACTS, GRAPH, PTR, 2)[0])
