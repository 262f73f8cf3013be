"""Numbers and findings as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.stats import Difference, Interval, Sample

MINUS = "−"


def number(value: float, decimals: int) -> str:
    """Fixed decimals, typographic minus, no negative zero."""
    text = f"{value:.{decimals}f}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def signed(value: float, decimals: int) -> str:
    """A number with its sign; zero has none."""
    text = number(value, decimals)
    return text if text.startswith(MINUS) or float(text) == 0 else f"+{text}"


def interval(value: Interval, decimals: int) -> str:
    """`[low, high]`."""
    return f"[{number(value.low, decimals)}, {number(value.high, decimals)}]"


def decimals_for(unit: str, samples: Sequence[Sample]) -> int:
    """Decimals of one column: 2 for percent, else two digits of the typical spread."""
    if unit in ("%", "points"):
        return 2
    spreads = sorted(sample.sd for sample in samples if sample.sd)
    if spreads:
        return max(0, min(6, 1 - math.floor(math.log10(spreads[len(spreads) // 2]))))
    sizes = [abs(sample.mean) for sample in samples if sample.mean]
    return max(0, min(6, 3 - math.floor(math.log10(max(sizes))))) if sizes else 2


def sample(value: Sample, decimals: int) -> str:
    """`mean ± sd (n)`; without ± for one seed."""
    if value.sd is None:
        return f"{number(value.mean, decimals)} ({value.n})"
    return f"{number(value.mean, decimals)} ± {number(value.sd, decimals)} ({value.n})"


def difference(value: Difference, decimals: int) -> str:
    """`difference [low, high]`, or why there is no interval."""
    text = signed(value.mean, decimals)
    if value.interval is not None:
        return f"{text} {interval(value.interval, decimals)}"
    return f"{text} (all {value.n} equal)" if value.constant else f"{text} (one pair)"


def p_value(value: float) -> str:
    """`p = 0.031`, `p < 0.001`."""
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def p_phrase(p: float | None, adjusted: float | None) -> str:
    """Both p values, empty where no test was made."""
    if p is None:
        return ""
    text = f"p {p_value(p)}"
    return text if adjusted is None else f"{text}, Holm {p_value(adjusted)}"


def ratio(value: float) -> str:
    """Two decimals and a mark above 1.10."""
    return f"{value:.2f}{'*' if value > 1.10 else ''}"


def unit_word(unit: str) -> str:
    """Unit of a difference: percentages differ by points."""
    return "points" if unit == "%" else unit


def direction(higher_is_better: bool | None) -> str:
    """Arrow towards better."""
    return "" if higher_is_better is None else ("↑" if higher_is_better else "↓")


def metric_label(name: str, unit: str, higher_is_better: bool | None) -> str:
    """`test/accuracy, %, ↑`."""
    return ", ".join(part for part in (name, unit, direction(higher_is_better)) if part)


def memory(num_bytes: float) -> str:
    """Bytes in MB or GB (powers of ten)."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    """Seconds with a fitting unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def count(value: int, singular: str, plural: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def span(values: Sequence[int]) -> str:
    """Sorted integers in short: `0-4, 7`."""
    parts: list[str] = []
    start = previous = None
    for value in [*sorted(values), None]:
        if previous is not None and (value is None or value != previous + 1):
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = value
        elif start is None:
            start = value
        previous = value
    return ", ".join(parts)


def listing(items: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
