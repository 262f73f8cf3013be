"""Sending along edges and summing what arrives: deterministic on every device.

Two operations, each the other's derivative: copy the rows of owners to their members (nodes to
edges), and sum the rows of members at their owners (edges at nodes, nodes of a graph). Summing goes
through sorted members and `embedding_bag`, which on a CPU takes a third to two thirds of the time
of `index_add` (measured with 2 to 50 edges a node) and on a GPU needs no atomic additions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Membership(NamedTuple):
    """What belongs to what: edges to a node, or nodes to a graph.

    Attributes:
        owner: (M,) int64 owner of each member.
        order: (M,) int64 members sorted by owner.
        starts: (K + 1,) int64 where an owner's members begin in `order`; then M.
    """

    owner: Tensor
    order: Tensor
    starts: Tensor

    @property
    def counts(self) -> Tensor:
        """(K,) int64 members of each owner."""
        return self.starts.diff()


def membership(owner: Tensor, num_owners: int) -> Membership:
    """Sort members by owner."""
    counts = torch.bincount(owner, minlength=num_owners)
    return Membership(owner, torch.argsort(owner, stable=True), F.pad(counts.cumsum(0), (1, 0)))


def sorted_membership(owner: Tensor, starts: Tensor) -> Membership:
    """For members that come owner by owner."""
    return Membership(owner, torch.arange(len(owner), device=owner.device), starts)


def spread(x: Tensor, members: Membership) -> Tensor:
    """(K, C) to (M, C): each member gets its owner's row."""
    rows: Tensor = _Spread.apply(x, *members)  # type: ignore[no-untyped-call]
    return rows


def gather(rows: Tensor, members: Membership) -> Tensor:
    """(M, C) to (K, C): each owner gets the sum of its members' rows."""
    sums: Tensor = _Gather.apply(rows, *members)  # type: ignore[no-untyped-call]
    return sums


class Edges:
    """Edges of a batch; a message goes from source to target.

    Args:
        edge_index: (2, E) int64, sources, then targets.
        num_nodes: N.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        source, target = edge_index
        self._leaving = membership(source, num_nodes)
        self._arriving = membership(target, num_nodes)

    def of_source(self, x: Tensor) -> Tensor:
        """(N, C) to (E, C): the row of each edge's source."""
        return spread(x, self._leaving)

    def of_target(self, x: Tensor) -> Tensor:
        """(N, C) to (E, C): the row of each edge's target."""
        return spread(x, self._arriving)

    def sum_arriving(self, messages: Tensor) -> Tensor:
        """(E, C) to (N, C): sums over the edges that a node is the target of."""
        return gather(messages, self._arriving)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, owner: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        return x.index_select(0, owner)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return gather(grad, Membership(*ctx.saved_tensors)), None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, owner: Tensor, order: Tensor, starts: Tensor) -> Tensor:
        return F.embedding_bag(order, rows, starts, mode="sum", include_last_offset=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return spread(grad, Membership(*ctx.saved_tensors)), None, None, None
