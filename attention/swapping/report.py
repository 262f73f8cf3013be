"""What a swap did, to read and to take back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROOT = "(the model itself)"


@dataclass(frozen=True)
class Replaced:
    """An attention that was replaced.

    Args:
        name: its qualified name in the model.
        kind: what it is.
        width: its heads.
        layer: index among the attentions that follow one another, from 0.
        num_layers: how many of them there are.
        added: number of parameters that the variant brought.
    """

    name: str
    kind: str
    width: str
    layer: int
    num_layers: int
    added: int


@dataclass(frozen=True)
class Left:
    """An attention that stayed as it was, and why."""

    name: str
    kind: str
    reason: str


class SwapReport:
    """What :func:`~attention.swapping.api.swap` did; print it to read it.

    Args:
        variant: name of the variant.
        options: its options.
        replaced: what was replaced.
        left: what stayed.
        notes: what its user has to know or to do.
        undo: takes all of it back.
    """

    def __init__(
        self,
        variant: str,
        options: Mapping[str, Any],
        replaced: Sequence[Replaced],
        left: Sequence[Left],
        notes: Sequence[str],
        undo: Callable[[], None],
    ) -> None:
        self.variant = variant
        self.options = dict(options)
        self.replaced = tuple(replaced)
        self.left = tuple(left)
        self.notes = tuple(notes)
        self._undo: Callable[[], None] | None = undo

    def undo(self) -> None:
        """Put the original attentions back.

        Parameters of the model are the same objects all along: without training in between the
        model computes what it did before, bit for bit, and with it, it keeps what it learned. What
        the variant itself learned is let go. Copies of the model made in between stay swapped.

        Raises:
            ValueError: it was undone before.
        """
        if self._undo is None:
            raise ValueError("this swap was undone already; swap() again for another report")
        undo, self._undo = self._undo, None
        undo()

    def __str__(self) -> str:
        options = f" with {self.options}" if self.options else ""
        state = ", undone" if self._undo is None else ""
        total = len(self.replaced) + len(self.left)
        lines = [f"{self.variant}{options} in {len(self.replaced)} of {total} attentions{state}"]
        rows = [
            (
                each.name or ROOT,
                each.kind,
                each.width,
                f"layer {each.layer + 1} of {each.num_layers}" if each.num_layers > 1 else "",
                f"+{each.added} parameters" if each.added else "",
            )
            for each in self.replaced
        ]
        lines += _aligned(rows)
        if self.left:
            lines.append("left as they were:")
            lines += _aligned([(each.name or ROOT, each.kind, each.reason) for each in self.left])
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"SwapReport({self.variant!r}, {len(self.replaced)} replaced, {len(self.left)} left)"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines, their columns under one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
