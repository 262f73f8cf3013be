"""The list that the checks enter themselves in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Options = Mapping[str, Any] | None
Check = Callable[[str, Options], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Decorator: every variant must pass this. Called with its name and options."""
    CHECKS.append(function)
    return function
