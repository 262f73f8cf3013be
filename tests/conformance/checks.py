"""What every variant must do: `CHECKS`, functions of the name of a variant and its options.

Tests run all of them for every registered variant and for the example in the README.
"""

from __future__ import annotations

from tests.conformance import checks_behaviour, checks_numerics
from tests.conformance.listing import CHECKS, Check

__all__ = ["CHECKS", "Check", "checks_behaviour", "checks_numerics"]
