"""The baseline in the course of a run: windows at maximum clocks with planned iterations between them (A/B/A).

Planned iterations are compared with the baseline interpolated between the window before them and the one after: a GPU that grows warm,
or a network that fills up, then changes both sides of the comparison.
"""

import dataclasses
import math
from dataclasses import dataclass

from megatron_energy.observe.interval import Interval
from megatron_energy.observe.phases import Windows
from megatron_energy.records.summary import IterationSummary


@dataclass
class Mean:
    """Of iteration times in s and energies in J."""

    count: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0

    def add(self, time_s: float, energy_j: float, count: int = 1) -> None:
        """Take in ``count`` iterations with these means."""
        if not count:
            return
        self.count += count
        self.time_s += (time_s - self.time_s) * count / self.count
        self.energy_j += (energy_j - self.energy_j) * count / self.count


@dataclass(frozen=True)
class Interpolated:
    """What planned iterations are compared with.

    Attributes:
        windows: of the baseline.
        time_s, energy_j: of the interpolated baseline, mean over the planned iterations.
        drift_percent: of the baseline's iteration time, from the first window to the last.
    """

    windows: int
    time_s: float
    energy_j: float
    drift_percent: float


class BaselineWindows:
    """Takes in every iteration of a run in order; remembers two windows and sums, however long the run.

    Attributes:
        count: complete windows.
        first, latest: of these.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first, self.latest = Mean(), Mean()
        self._window, self._between = Mean(), Mean()  # not yet complete
        self._behind = Mean()  # the interpolated baseline of all planned iterations before the latest window
        self._phase = ""

    def add(self, summary: IterationSummary) -> None:
        """Take in an iteration. The first one of a phase contains what came before it and is left out, and so is one without energy."""
        before, self._phase = self._phase, summary.phase
        if summary.phase not in ("baseline", "evaluation") and self._window.count:
            self._close()
        if before != summary.phase or not math.isfinite(summary.energy_j):
            return
        if summary.phase == "baseline":
            self._window.add(summary.time_s, summary.energy_j)
        elif summary.phase == "planned":
            self._between.add(summary.time_s, summary.energy_j)

    def _close(self) -> None:
        """A window is complete: planned iterations before it lie half-way, on average, between it and the one before."""
        window, between = self._window, self._between
        if self.count:
            self._behind.add(*_half_way(self.latest, window), between.count)
        else:
            self.first = window
        self.count += 1
        self.latest, self._window, self._between = window, Mean(), Mean()

    def interpolated(self) -> Interpolated | None:
        """The comparison as it stands; None unless there are two windows with planned iterations."""
        total = Mean(self._behind.count, self._behind.time_s, self._behind.energy_j)
        total.add(self.latest.time_s, self.latest.energy_j, self._between.count)  # nothing came after
        if self.count < 2 or not total.count:
            return None
        return Interpolated(self.count, total.time_s, total.energy_j, 100 * (self.latest.time_s / self.first.time_s - 1))


def _half_way(a: Mean, b: Mean) -> tuple[float, float]:
    return (a.time_s + b.time_s) / 2, (a.energy_j + b.energy_j) / 2


def against_interpolated(windows: Windows, found: Interpolated | None) -> Windows:
    """A run's windows with the interpolated baseline in place of the mean of its windows; GPUs keep their shares of the energy."""
    mean = windows.baseline
    if mean is None or found is None:
        return windows
    scale = found.energy_j / mean.iteration_energy_j if mean.iteration_energy_j else 1.0
    baseline = _scaled(mean, found.time_s, scale)
    return dataclasses.replace(windows, baseline=baseline, baseline_windows=found.windows, drift_percent=found.drift_percent)


def _scaled(mean: Interval, time_s: float, scale: float) -> Interval:
    power = scale * mean.time_s / time_s
    gpus = [dataclasses.replace(g, iteration_energy_j=scale * g.iteration_energy_j, power_w=power * g.power_w) for g in mean.gpus]
    return dataclasses.replace(mean, time_s=time_s, gpus=tuple(gpus))
