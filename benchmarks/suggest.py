"""Errors that name the nearest right word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A sentence with the nearest candidates, or nothing if none is near.

    Dotted keys are also compared by their last part, so that `lr` finds `recipe.optimizer.lr`.
    """
    candidates = list(candidates)
    by_leaf = [c for c in candidates if c.rsplit(".", 1)[-1] == word.rsplit(".", 1)[-1]]
    close = by_leaf or get_close_matches(word, candidates, n=3, cutoff=0.6)
    if not close:
        leaves = {c.rsplit(".", 1)[-1]: c for c in candidates}
        close = [leaves[leaf] for leaf in get_close_matches(word, leaves, n=2, cutoff=0.7)]
    return f" Did you mean {' or '.join(repr(c) for c in close[:3])}?" if close else ""


def unknown(what: str, word: str, allowed: Iterable[str]) -> ValueError:
    """The error for a name that does not exist."""
    allowed = list(allowed)
    return ValueError(
        f"unknown {what} '{word}'.{did_you_mean(word, allowed)} Allowed: {', '.join(allowed)}."
    )
