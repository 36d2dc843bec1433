"""How much iteration times scatter, and where their middle lies: estimates that rare long iterations do not spoil."""

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

QUANTILE = 0.7
"""Of the sizes of differences. With rare long iterations one would take the median, which half of all values may spoil, but it needs
twice as many values for the same precision. This quantile stands a sixth of the iterations being long."""

QUANTILE_OF_NORMAL = statistics.NormalDist().inv_cdf((1 + QUANTILE) / 2)
"""Below it lies the given share of the sizes of standard normal values."""

REMEMBERED = 512
"""Differences: the estimate is then right to 5%, and a change of the noise is noticed within so many iterations."""

HUBER = 2.5
"""Standard deviations from which on a value counts no more than at this distance (Huber 1964): the mean keeps 99% of its efficiency
under normal noise."""


class Noise:
    """Standard deviation of the logarithms of iteration times, from differences between neighbours.

    Differences do not see that the mean has changed, so a slowdown does not hide behind the noise that it would add to itself
    (von Neumann 1941).
    """

    def __init__(self) -> None:
        self._ordered: list[float] = []
        self._recent: deque[float] = deque()
        self._before: float | None = None

    def add(self, value: float) -> None:
        """The next one in a row."""
        if self._before is not None:
            size = abs(value - self._before)
            insort(self._ordered, size)
            self._recent.append(size)
            if len(self._recent) > REMEMBERED:
                del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._before = value

    def interrupt(self) -> None:
        """The next value does not follow the last one: something else ran in between."""
        self._before = None

    @property
    def deviation(self) -> float:
        """One standard deviation, half a standard error above the best estimate; 0 for no noise, or not enough values to tell."""
        count = len(self._ordered)
        if not count:
            return 0.0
        size = self._ordered[min(int(QUANTILE * count), count - 1)]
        return size / (QUANTILE_OF_NORMAL * math.sqrt(2)) * (1 + 0.5 / math.sqrt(count))


FEW = 8
"""Values of which the median is taken: their deviation is hardly known."""


def robust_mean(values: Sequence[float], deviation: float) -> float:
    """Mean of values, each drawn to within :data:`HUBER` deviations of their median; of few values the median."""
    middle = statistics.median(values)
    if len(values) < FEW:
        return middle
    return middle + statistics.fmean(clipped(v - middle, HUBER * deviation) for v in values)


def clipped(value: float, limit: float) -> float:
    """The value, drawn to within +-limit."""
    return max(-limit, min(limit, value))
