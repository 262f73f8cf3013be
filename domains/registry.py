"""Finds the domains: every folder of `domains/` that holds a `domain.py` is one."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domains.base import Domain


@cache
def names() -> tuple[str, ...]:
    """Names of all domains, without importing any of them."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/domain.py")))


@cache
def load(name: str) -> Domain:
    """Import a domain and return its contract.

    Raises:
        ValueError: there is no domain of that name.
    """
    if name not in names():
        close = get_close_matches(name, names(), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"unknown domain '{name}'.{hint} Domains: {', '.join(names())}.")
    domain: Domain = importlib.import_module(f"domains.{name}.domain").DOMAIN
    return domain
