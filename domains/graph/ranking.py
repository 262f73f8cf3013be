"""How high true contacts rank among all pairs that share their first node.

Source: rampasek/GraphGPS at 2801570 `graphgps/head/inductive_edge.py` (raw ranks),
vijaydwivedi75/lrgb at 2410e9e of the same name (filtered ranks).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention.packing import packing_of


class Ranks(NamedTuple):
    """(C,) ranks of the contacts (i, j) by the score of the pair, 1 is the best.

    Attributes:
        raw: among (i, k) for all k of the graph, so also k = i and other contacts of i.
        filtered: without the other contacts of i.
        filtered_noself: without these and without k = i.
    """

    raw: Tensor
    filtered: Tensor
    filtered_noself: Tensor


def contact_ranks(hidden: Tensor, batch: Any) -> Ranks:
    """Ranks of all contacts of a batch; the score of a pair is the dot product of its nodes.

    A pair with the same score counts as half a better one: what the reference's unstable sort
    gives on average. One whose score is not a number counts as better.

    Args:
        hidden: (N, D) vectors of the nodes.
        batch: `contacts` (2, C), `contact_graph` (C,) and `ptr` (B + 1,), all int64.
    """
    packing = packing_of("ptr", batch.ptr, len(hidden))
    padded = packing.pad(hidden)
    graph = batch.contact_graph
    first, second = batch.contacts - batch.ptr[graph]
    inside = torch.arange(packing.length, device=hidden.device) < batch.ptr.diff()[:, None]
    is_contact = inside.new_zeros(*inside.shape, packing.length)
    is_contact[graph, first, second] = True

    scores = (padded @ padded.mT)[graph, first]
    own = scores.gather(1, second[:, None])
    ahead = (~(scores <= own)).float() + 0.5 * (scores == own).float()
    # The pair itself is not among those that it is ranked against.
    ahead = ahead.masked_fill(~inside[graph], 0.0).scatter(1, second[:, None], 0.0)
    others = ahead.masked_fill(is_contact[graph, first], 0.0)
    no_self = others.scatter(1, first[:, None], 0.0)
    return Ranks(*(1.0 + counted.sum(1) for counted in (ahead, others, no_self)))
