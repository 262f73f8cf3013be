"""A causal model of two lines, for tests of what is done with a model."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from domains.language.interface import LanguageModel, Memory


class MeanModel(LanguageModel):
    """Predicts from the mean embedding of the tokens that it sees, and from the last one.

    Args:
        vocabulary: number of tokens.
        memory: positions that are remembered, 0 for a model without a memory.
    """

    def __init__(self, vocabulary: int, memory: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = torch.nn.Parameter(torch.randn(vocabulary, 8, generator=generator))
        self.classify = torch.nn.Parameter(torch.randn(8, vocabulary, generator=generator))
        self.dropout = torch.nn.Dropout(0.5)
        self.memory = memory
        self.batches: list[tuple[int, int, bool]] = []
        self.memories: list[Memory | None] = []

    def new_memory(
        self, *, length: int | None = None, clamp: int | None = None, equal_context: bool = False
    ) -> Memory | None:
        if not self.memory:
            return None
        return Memory((), self.memory if length is None else length, clamp, equal_context)

    def forward(
        self,
        inputs_bl: Tensor,
        targets_bl: Tensor,
        *,
        last_only: bool = False,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Memory | None]:
        assert inputs_bl.shape == targets_bl.shape
        self.batches.append((*inputs_bl.shape, last_only))
        self.memories.append(memory)
        x = self.embed[inputs_bl]
        before = memory.layers[0] if memory and memory.layers else x[:, :0]
        seen = torch.cat([before, x], dim=1)
        last = torch.arange(before.shape[1], seen.shape[1])[:, None]
        keys = torch.arange(seen.shape[1])
        visible = keys <= last
        if memory and memory.equal_context:
            visible &= keys > last - memory.length
        weight = visible / visible.sum(-1, keepdim=True)
        state = self.dropout(torch.einsum("lm,bmd->bld", weight, seen) + x)
        log_p = torch.log_softmax(state @ self.classify, dim=-1)
        each = log_p.gather(-1, targets_bl[..., None])[..., 0]
        if memory:
            kept = seen[:, max(0, seen.shape[1] - memory.length) :].detach()
            memory = dataclasses.replace(memory, layers=(kept,))
        return (each[:, -1:] if last_only else each), memory
