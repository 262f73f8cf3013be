"""Finds the domains: every folder of `domains/` that holds a `domain.py` is one.

Its `config.py` names schema and protocols as `SPEC`, its `domain.py` the contract as `DOMAIN`.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domains.base import Domain
    from domains.contract import DomainSpec


@cache
def names() -> tuple[str, ...]:
    """Names of all domains, without importing any of them."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/domain.py")))


@cache
def spec(name: str) -> DomainSpec:
    """Schema and protocols of a domain, without importing torch.

    Raises:
        ValueError: there is no domain of that name.
    """
    _check(name)
    found: DomainSpec = importlib.import_module(f"domains.{name}.config").SPEC
    return found


@cache
def load(name: str) -> Domain:
    """Import a domain and return its contract.

    Raises:
        ValueError: there is no domain of that name.
    """
    _check(name)
    domain: Domain = importlib.import_module(f"domains.{name}.domain").DOMAIN
    return domain


def _check(name: str) -> None:
    if name not in names():
        close = get_close_matches(name, names(), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"unknown domain '{name}'.{hint} Domains: {', '.join(names())}.")
