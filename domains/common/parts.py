"""Parts of a batch, for several devices that share it."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor


def rows_of(batch: Any) -> int:
    """Number of samples in a batch whose tensors have a row for each.

    Args:
        batch: a named tuple, a dataclass or a mapping.

    Raises:
        ValueError: it is something else, or its tensors differ in their rows.
    """
    rows = {value.shape[0] for value in _fields(batch).values() if isinstance(value, Tensor)}
    if len(rows) != 1:
        raise ValueError(
            f"trainer.devices must be 1 in this domain: its batches ({type(batch).__name__}) "
            "cannot be cut by rows; allowed for others: BenchmarkModule.samples and part"
        )
    return int(rows.pop())


def take_rows(batch: Any, begin: int, end: int) -> Any:
    """Samples `begin` to `end` - 1 of such a batch."""
    values = {
        name: value[begin:end] if isinstance(value, Tensor) else value
        for name, value in _fields(batch).items()
    }
    if isinstance(batch, dict):
        return values
    return type(batch)(**values)


def _fields(batch: Any) -> dict[str, Any]:
    if isinstance(batch, dict):
        return batch
    if dataclasses.is_dataclass(batch):
        return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    if hasattr(batch, "_asdict"):
        return dict(batch._asdict())
    return {}
