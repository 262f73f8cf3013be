"""Sequences laid end to end, to padded batches and back, without a loop over sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where packed tokens go in a padded batch of S sequences, the longest of L tokens.

    Args:
        sequences: S.
        length: L.
        slots: (T,) position of each token in the flattened (S * L) batch; None when all
            sequences are equally long, so that both layouts are the same.
    """

    sequences: int
    length: int
    slots: Tensor | None

    def mask(self) -> Tensor | None:
        """(S, L) bool, True = real token; None when nothing is padded."""
        if self.slots is None:
            return None
        flat = torch.zeros(self.sequences * self.length, dtype=torch.bool, device=self.slots.device)
        return flat.index_fill_(0, self.slots, True).view(self.sequences, self.length)

    def pad(self, tokens: Tensor) -> Tensor:
        """(T, C) to (S, L, C), zeros in between."""
        width = tokens.shape[-1]
        if self.slots is not None:
            flat = tokens.new_zeros(self.sequences * self.length, width)
            tokens = flat.index_copy(0, self.slots, tokens)
        return tokens.view(self.sequences, self.length, width)

    def unpad(self, padded: Tensor) -> Tensor:
        """(S, L, C) to (T, C)."""
        flat = padded.reshape(self.sequences * self.length, padded.shape[-1])
        return flat if self.slots is None else flat.index_select(0, self.slots)


def packing_of(name: str, cu_seqlens: Tensor, num_tokens: int) -> Packing:
    """Layout from cumulative lengths. Reads four numbers back from the device.

    Args:
        name: of the argument, for messages.
        cu_seqlens: (S + 1,) int, starts with 0, ends with T; sequences may be empty.
        num_tokens: T.

    Raises:
        ValueError: `cu_seqlens` is not of this kind.
    """
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2 or cu_seqlens.is_floating_point():
        raise ValueError(
            f"{name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, expected integers "
            "of shape (sequences + 1,)"
        )
    lengths = cu_seqlens.diff()
    first, last, shortest, longest = torch.stack(
        [cu_seqlens[0], cu_seqlens[-1], lengths.min(), lengths.max()]
    ).tolist()
    if first != 0 or last != num_tokens or shortest < 0:
        raise ValueError(
            f"{name} must rise from 0 to the number of tokens, {num_tokens}; it goes from {first} "
            f"to {last}{' and falls in between' if shortest < 0 else ''}"
        )
    sequences = lengths.numel()
    if shortest == longest:
        return Packing(sequences, longest, None)
    # Token t of sequence s stands at t - start of s in row s.
    shift = torch.arange(sequences, device=cu_seqlens.device) * longest - cu_seqlens[:-1]
    slots = torch.arange(num_tokens, device=cu_seqlens.device)
    slots = slots + shift.repeat_interleave(lengths, output_size=num_tokens)
    return Packing(sequences, longest, slots)
