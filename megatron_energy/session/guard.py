"""Whether iterations under a plan take longer than they may: a sequential test on their times.

The test is a one-sided cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954). With x = ln(time / allowed time)
and the standard deviation d of x, every iteration adds (x - a) / d, drawn to within +-C (Huber, "A robust version of the probability
ratio test", Ann. Math. Stat. 36, 1965: the same test for a distribution of which a small part may be anything), to a sum that never
falls below 0. It alarms when the sum exceeds H.

- a = max(0.5%, d / 2): a change is found soonest by an allowance of half its size (Page; Moustakides 1986 proves it). With 2% noise
  that is a change by one deviation, so that 3% (1.5 deviations) are found with a margin; with less noise the tolerance rules.
- C = 1.5 lets one iteration that is three times as long count like one that is 3 deviations late, so that six within a few iterations are
  needed for an alarm.
- H = 7 is what the mean time between alarms without a slowdown asks for: tools/check_guard.py solves Page's integral equation for it
  as Brook and Evans did (Biometrika 59, 1972), and simulates everything below.

The sum is fast in the mean, and in a few runs of a hundred it is late. So a second test runs beside it that is slow and sure: it alarms
when the mean of the last 16 iterations, each drawn to within 2.5 deviations, is above the limit of the verdict. A change by 1.5 deviations
is three standard errors beyond that limit after 16 iterations.

An alarm is not yet a verdict: the baseline window is short, and its mean is uncertain. So a session answers with an experiment,
some iterations at maximum clocks and as many under the plan (:mod:`megatron_energy.session.guarded`), and compares fresh with fresh.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

from megatron_energy.session.noise import HUBER, Noise, clipped, robust_mean

TOLERANCE = 0.005
"""Longer than allowed by up to this share is no violation: what a learned profile leaves unexplained of the baseline may be as much."""

ALLOWANCE = 0.5  # in deviations; the three numbers of the test, see above
CLIP = 1.5
THRESHOLD = 7.0

WINDOW = 16
"""Iterations of the second test's mean."""

LEAST_DEVIATION = 0.001
"""Iteration times without noise, as emulated ones, are judged as if they had this much."""

CERTAIN = 3.0
"""Standard errors of the difference that the verdict's limit has to be, or a comparison is repeated before a plan is given up."""

POOLED = 256
"""Iterations that a mean stands for at most: older ones fade."""

DIFFERENT = 3.0
"""Standard errors of the difference from which on a new baseline window is another baseline, not more of the same."""

VERDICT = 0.75  # in deviations

EXPLAINED = 2.0

TRIAL = 30
"""Iterations of a new plan that say nothing about the baseline: without a slowdown they pass, with one of 3% few would."""

LEAST_WINDOW, MOST_WINDOW = 3, 15
"""Iterations of a baseline window that is measured during the run."""


class Guard:
    """Watches iteration times under a plan.

    Example::

        guard = Guard(slowdown=0.0)
        guard.rebase(baseline_times_s)
        for time_s in planned_times_s:
            if guard.observe(time_s):
                ...                       # alarm: guard.excess is by how much

    Args:
        slowdown: allowed, as a fraction of the baseline's iteration time.
    """

    def __init__(self, slowdown: float) -> None:
        self._allowed = math.log1p(slowdown)
        self._noise = Noise()
        self._baseline = 0.0  # mean of ln(time in s) ...
        self._pooled = 0  # ... of so many iterations
        self._level, self._planned = 0.0, 0  # the same of iterations under the plan, against what is allowed
        self._sum = 0.0
        self._since: deque[float] = deque(maxlen=POOLED)  # excesses since the sum was last 0
        self._recent: deque[float] = deque(maxlen=WINDOW)  # excesses, drawn in, for the second test

    def rebase(self, times_s: Sequence[float]) -> float:
        """Take in a baseline window, s; returns by what fraction it is longer than the baseline before it (0.0 for the first one)."""
        logs = [math.log(t) for t in times_s]
        self._noise.interrupt()
        for value in logs:
            self._noise.add(value)
        self._noise.interrupt()
        new, before = robust_mean(logs, self._scale), self._baseline
        if not self._pooled:
            self._baseline, self._pooled = new, len(logs)
            return 0.0
        error = self._noise.deviation * math.sqrt(1 / self._pooled + 1 / len(logs))
        if abs(new - before) <= DIFFERENT * error:
            self._baseline += (new - before) * len(logs) / (self._pooled + len(logs))
            self._pooled = min(self._pooled + len(logs), POOLED)
        else:
            self._baseline, self._pooled = new, len(logs)
        self._level -= self._baseline - before
        self._clear()
        return math.expm1(new - before)

    def restart(self) -> None:
        """Another plan is in force from the next iteration on."""
        self._level, self._planned = 0.0, 0
        self._clear()

    def observe(self, time_s: float) -> bool:
        """Take in one iteration under the plan; whether it is time for an alarm. After one, everything begins anew."""
        value = math.log(time_s)
        self._noise.add(value)
        excess = value - self._baseline - self._allowed
        unexplained = excess - self._understood
        self._sum = max(0.0, self._sum + clipped((unexplained - self.allowance) / self._scale, CLIP))
        self._recent.append(clipped(unexplained, HUBER * self._scale))
        if self._sum > 0:
            self._since.append(excess)
        else:
            self._since.clear()
        self._planned = min(self._planned + 1, POOLED)
        self._level += clipped(excess - self._level, HUBER * self._scale) / self._planned
        return self._sum > THRESHOLD or (len(self._recent) == WINDOW and statistics.fmean(self._recent) > self.limit)

    def interrupt(self) -> None:
        """Something else ran; the sum begins anew."""
        self._noise.interrupt()
        self._clear()

    @property
    def excess(self) -> float:
        """By what fraction the iterations since the sum was last 0 were longer than allowed: Page's estimate of the change."""
        return math.expm1(robust_mean(self._since, self._scale)) if self._since else 0.0

    @property
    def deviation(self) -> float:
        """Of the logarithm of one iteration's time, so about a fraction of it."""
        return self._noise.deviation

    @property
    def allowance(self) -> float:
        """Excess that is never held against a plan, as a fraction."""
        return max(TOLERANCE, ALLOWANCE * self.deviation)

    @property
    def limit(self) -> float:
        """Difference of two fresh windows from which on the plan is at fault, as a fraction: half of the slowdown to be found."""
        return max(TOLERANCE, VERDICT * self.deviation)

    @property
    def uncertain(self) -> bool:
        """Whether the baseline window is too short for its noise: its standard error is above a quarter of the limit."""
        return 4 * self.deviation / math.sqrt(self._pooled) > self.limit

    @property
    def window(self) -> int:
        """Iterations that a comparison needs on each side, so that the limit is at least two standard errors of the difference."""
        wanted = 2 * (2 * self.deviation / self.limit) ** 2
        return min(max(math.ceil(wanted), LEAST_WINDOW), MOST_WINDOW)

    def is_certain(self, count: int) -> bool:
        """Whether windows of ``count`` iterations on each side tell a difference of the limit from noise."""
        return self.limit >= CERTAIN * self.deviation * math.sqrt(2 / count)

    def compared(self, baseline_s: Sequence[float], planned_s: Sequence[float]) -> float:
        """By what fraction the iterations of one window are longer than those of the other allow."""
        before, under = (robust_mean([math.log(t) for t in times_s], self._scale) for times_s in (baseline_s, planned_s))
        return math.expm1(under - before - self._allowed)

    @property
    def _scale(self) -> float:
        return max(self.deviation, LEAST_DEVIATION)

    @property
    def _understood(self) -> float:
        """Excess, or the lack of it, that is explained by the error of a short baseline window, not by the plan.

        Once it has gone well for a while, the plan's own iterations are as good a measurement of the time allowed as the baseline's:
        the two are pooled, within :data:`EXPLAINED` standard errors of the baseline's mean.
        """
        trusted = max(self._planned - TRIAL, 0)
        pooled = self._level * trusted / (trusted + self._pooled)
        return clipped(pooled, EXPLAINED * self.deviation / math.sqrt(self._pooled))

    def _clear(self) -> None:
        self._sum = 0.0
        self._since.clear()
        self._recent.clear()
