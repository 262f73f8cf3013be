"""Pairs that PCQM-Contact is trained and scored on: true contacts and sampled negatives."""

from __future__ import annotations

import torch
from torch import Tensor

NEGATIVES = 2
"""Negative pairs a contact, with the same first node."""

TRIES = 10
"""Draws after the first; a pair that is still a contact or a repetition is then left out."""


def with_negatives(
    contacts: Tensor, graph: Tensor, ptr: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Contacts and negative pairs (i, k), two for each contact (i, j), k any node of the graph.

    Negatives are no contacts and differ from one another; k = i is allowed. In a graph with too
    few nodes some are left out.

    Source: rampasek/GraphGPS at 2801570, `graphgps/loader/dataset/pcqm4mv2_contact.py`, with
    `resample_negative`; there graph by graph, here for a batch at once.

    Args:
        contacts: (2, C) int64 directed pairs by global node number.
        graph: (C,) int64 graph of each.
        ptr: (B + 1,) int64 first node of each graph.
        generator: source of the random numbers.

    Returns:
        (2, P) int64 pairs, contacts first, and (P,) float32 labels, 1 for contacts.
    """
    nodes = int(ptr[-1])
    known = contacts[0] * nodes + contacts[1]
    head = contacts[0].repeat_interleave(NEGATIVES)
    first = ptr[graph].repeat_interleave(NEGATIVES)
    size = ptr.diff()[graph].repeat_interleave(NEGATIVES)

    def draw(rows: Tensor) -> Tensor:
        chance = torch.rand(len(rows), generator=generator, dtype=torch.float64)
        return first[rows] + (chance * size[rows]).to(torch.int64)

    tail = draw(torch.arange(len(head)))
    for attempt in range(TRIES + 1):
        pair = head * nodes + tail
        again = (torch.isin(pair, known) | _repeated(pair)).nonzero().flatten()
        if not len(again) or attempt == TRIES:
            break
        tail[again] = draw(again)
    kept = torch.ones(len(head), dtype=torch.bool)
    kept[again] = False
    negatives = torch.stack([head[kept], tail[kept]])
    label = torch.zeros(contacts.shape[1] + negatives.shape[1])
    label[: contacts.shape[1]] = 1.0
    return torch.cat([contacts, negatives], dim=1), label


def _repeated(values: Tensor) -> Tensor:
    """(R,) True for a value that stood in front already."""
    order = torch.argsort(values, stable=True)
    sorted_values = values[order]
    repeated = torch.zeros_like(values, dtype=torch.bool)
    repeated[order[1:]] = sorted_values[1:] == sorted_values[:-1]
    return repeated
