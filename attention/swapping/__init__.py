"""Another attention in a model that exists: :func:`swap` and what it reports.

    report = swap(model, "quest")
    print(report)
    report.undo()

One file for each kind of attention that is known. None of them imports the library that it is
for, unless the model at hand is one of that library's.
"""

from .api import swap
from .report import Left, Replaced, SwapReport

__all__ = ["Left", "Replaced", "SwapReport", "swap"]
