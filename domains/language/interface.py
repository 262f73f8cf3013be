"""What evaluation and training need to know of a language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Memory:
    """What Transformer-XL remembers of the segments before, and how it is read.

    A new one is made by :meth:`LanguageModel.new_memory`; every call returns its successor.

    Attributes:
        layers: for every layer, its last inputs (B, M, D), without gradient; empty at the start.
        length: positions that are kept for the next segment.
        clamp: distances above this one count as this one; None for no bound.
        equal_context: whether every query sees `length` keys, itself included, as soon as there
            are as many; otherwise it sees all that is remembered.
    """

    layers: tuple[Tensor, ...] = ()
    length: int = 0
    clamp: int | None = None
    equal_context: bool = False


class LanguageModel(nn.Module, ABC):
    """A causal model of token streams.

    Attributes:
        layers: of attention, in order.
    """

    layers: nn.ModuleList

    def log_likelihood(
        self,
        inputs_bl: Tensor,
        targets_bl: Tensor,
        *,
        last_only: bool = False,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Memory | None]:
        """:meth:`forward` by a name that says what it gives."""
        result: tuple[Tensor, Memory | None] = self(
            inputs_bl, targets_bl, last_only=last_only, memory=memory
        )
        return result

    @abstractmethod
    def forward(
        self,
        inputs_bl: Tensor,
        targets_bl: Tensor,
        *,
        last_only: bool = False,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Memory | None]:
        """Log-probability of each target, given the inputs up to its position.

        Args:
            inputs_bl: (B, L) int64 tokens.
            targets_bl: (B, L) int64, the tokens one later.
            last_only: predict the last target alone; the last layer and the softmax are computed
                for that position only.
            memory: what :meth:`new_memory` or the call before returned; None to read nothing and
                remember nothing.

        Returns:
            (B, L) or (B, 1) natural logarithms, at least float32, and the memory for the next
            segment, None if none was given.
        """

    @abstractmethod
    def new_memory(
        self, *, length: int | None = None, clamp: int | None = None, equal_context: bool = False
    ) -> Memory | None:
        """An empty memory, None for a model that has none.

        Args:
            length: positions to keep; by default as in training.
            clamp: see :class:`Memory`.
            equal_context: see :class:`Memory`.
        """
