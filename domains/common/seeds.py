"""Seeds of independent random streams, each a pure function of the run's seed and a purpose."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose (`derive(seed, "order", epoch)`), from 0 to 2**63 - 1.

    Streams of data must not name the attention variant in their purpose: runs with the same seed
    are pairs only if they see the same splits in the same order.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
