"""How the graphs of a batch enter the attention: laid out once, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attention import LayerState, MultiHeadAttention
from attention.packing import Packing, packing_of

PADDING_SCORES = 2**14
"""Attention scores of one head that padding may add to a group before a new one begins: about
what a call of the attention costs on a CPU beside its scores. Measured; see the README."""

PADDING_SHARE = 0.15
"""A group may also grow by this part of its own scores, so that groups stay few."""


class Group(NamedTuple):
    """Graphs that enter the attention together.

    Attributes:
        nodes: number of nodes of all of them.
        packing: to a padded batch and back.
        mask: (graphs, longest) bool, True = node; None when nothing is padded.
        state: what the attention of one layer leaves for the next.
    """

    nodes: int
    packing: Packing
    mask: Tensor | None
    state: LayerState


class Layout:
    """Calls attention layers on a batch: every node sees the nodes of its own graph.

    For one forward pass of a model.

    Args:
        kind: `dense`, `grouped` or `packed`, see :class:`~domains.graph.config.ModelConfig`.
        starts: (B + 1,) int64 first node of each graph, then N.
    """

    def __init__(self, kind: str, starts: Tensor) -> None:
        self._order: Tensor | None = None
        self._back: Tensor | None = None
        self._groups: list[Group] = []
        self._starts = starts
        self._state = LayerState()
        if kind == "packed":
            return
        lengths = starts.diff()
        sizes: list[int] = lengths.tolist()
        falling = sorted(sizes, reverse=True)
        counts = group_counts(falling) if kind == "grouped" else [len(sizes)]
        if len(counts) > 1:
            sizes = falling
            by_size = torch.argsort(lengths, descending=True, stable=True)
            self._order = _nodes_of(by_size, starts)
            self._back = torch.empty_like(self._order)
            self._back[self._order] = torch.arange(len(self._order), device=starts.device)
        for first, last in pairwise([0, *accumulate(counts)]):
            ends = torch.tensor([0, *accumulate(sizes[first:last])], device=starts.device)
            nodes = sum(sizes[first:last])
            packing = packing_of("ptr", ends, nodes)
            self._groups.append(Group(nodes, packing, packing.mask(), LayerState()))

    def attend(self, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """(N, C) to (N, C)."""
        if not self._groups:
            return attention(x, cu_seqlens=self._starts, state=self._state)
        if self._order is not None:
            x = x.index_select(0, self._order)
        parts = []
        for part, group in zip(x.split([g.nodes for g in self._groups]), self._groups, strict=True):
            padded = group.packing.pad(part)
            out = attention(padded, key_padding_mask=group.mask, state=group.state)
            parts.append(group.packing.unpad(out))
        out = torch.cat(parts)
        return out if self._back is None else out.index_select(0, self._back)


def group_counts(sizes: Sequence[int]) -> list[int]:
    """How many graphs, from the largest on, go into each group.

    Args:
        sizes: nodes of each graph, falling.
    """
    counts: list[int] = []
    own = padded = longest = 0
    for size in sizes:
        own += size * size
        padded += longest * longest
        if not counts or padded - own > max(PADDING_SCORES, PADDING_SHARE * own):
            counts.append(0)
            longest, own, padded = size, size * size, size * size
        counts[-1] += 1
    return counts


def _nodes_of(graphs: Tensor, starts: Tensor) -> Tensor:
    """(N,) nodes of all graphs, in the order of `graphs`."""
    lengths = starts.diff()[graphs]
    before = lengths.cumsum(0) - lengths
    shift = (starts[:-1][graphs] - before).repeat_interleave(lengths)
    return torch.arange(len(shift), device=starts.device) + shift
