"""Success rates and their uncertainty: data and initialisations are resampled, both at once.

Runs of a grid are not independent: those with the same data are easy or hard together, and so are
those with the same initial weights. A binomial interval over all runs would be far too narrow. The
bootstrap here draws data seeds with replacement and, crossed with them, initialisation seeds; the
points of the grid are fixed. Variants are compared on the same draws.

Source: the crossed ("pigeonhole") bootstrap of Owen, The pigeonhole bootstrap, Annals of Applied
Statistics 1 (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.stats import ALPHA, CONFIDENCE, Interval

DRAWS = 10_000

Counts = NDArray[np.int64]
"""Number of runs: [data, init]."""


@dataclass(frozen=True)
class Rate:
    """Share of runs that succeeded.

    Attributes:
        hits: runs that succeeded.
        n: runs that ended, diverged ones included.
        interval: 95 % interval in percent, None where there is nothing to resample.
    """

    hits: int
    n: int
    interval: Interval | None

    @property
    def percent(self) -> float:
        """Share in percent."""
        return 100 * self.hits / self.n


@dataclass(frozen=True)
class RateDifference:
    """Rate of a variant minus that of the baseline, over the places that both have.

    Attributes:
        points: in points of percent.
        n: pairs of runs.
        interval: 95 % interval, None where there is nothing to resample.
        corrected: the same at Bonferroni's level over all that is compared with the baseline.
    """

    points: float
    n: int
    interval: Interval | None
    corrected: Interval | None


class Resampling:
    """Draws of data and initialisation seeds, shared by everything that is compared.

    Args:
        data: number of data seeds.
        init: number of initialisation seeds.
        draws: how many times both are drawn anew.
    """

    def __init__(self, data: int, init: int, draws: int = DRAWS) -> None:
        generator = np.random.default_rng(0)
        self.data = generator.multinomial(data, np.full(data, 1 / data), size=draws)
        self.init = generator.multinomial(init, np.full(init, 1 / init), size=draws)
        self._fixed = data == init == 1

    def rate(self, hits: Counts, runs: Counts) -> Rate | None:
        """A share with its interval, None without a run.

        Args:
            hits: successes by data and initialisation seed.
            runs: ended runs likewise.
        """
        if not runs.sum():
            return None
        return Rate(int(hits.sum()), int(runs.sum()), self._interval(100 * hits, runs))

    def difference(
        self, ours: Counts, base: Counts, runs: Counts, comparisons: int = 1
    ) -> RateDifference | None:
        """Difference of two shares of the same runs, None without a pair.

        Args:
            ours: successes by data and initialisation seed.
            base: those of the baseline.
            runs: pairs of ended runs likewise.
            comparisons: how many differences to the baseline there are.
        """
        n = int(runs.sum())
        if not n:
            return None
        change = 100 * (ours - base)
        return RateDifference(
            float(change.sum()) / n,
            n,
            self._interval(change, runs),
            self._interval(change, runs, 1 - ALPHA / comparisons),
        )

    def _interval(
        self, total: Counts, runs: Counts, confidence: float = CONFIDENCE
    ) -> Interval | None:
        if self._fixed:
            return None
        tops = np.einsum("rd,di,ri->r", self.data, total, self.init, optimize=True)
        counts = np.einsum("rd,di,ri->r", self.data, runs, self.init, optimize=True)
        # Where a variant lacks runs a draw may hit none of them, and says nothing.
        drawn = tops[counts > 0] / counts[counts > 0]
        if not len(drawn):
            return None
        tail = (1 - confidence) / 2
        low, high = np.quantile(drawn, (tail, 1 - tail))
        return Interval(float(low), float(high))
