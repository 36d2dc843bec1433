"""The baseline between its windows."""

import math

import pytest

from megatron_energy.records.summary import GpuSummary, IterationSummary
from megatron_energy.session.baseline import BaselineWindows


def feed(windows: BaselineWindows, phase: str, *times_s: float, energy_j: float | None = None) -> None:
    """Iterations of 100 W, unless their energy is given."""
    for time_s in times_s:
        joules = 100 * time_s if energy_j is None else energy_j
        gpu = GpuSummary(0, "node0", 0, "GPU-0", 0, 0, 0, energy_j=joules, power_w=100.0, clock_mhz=1410.0, waiting_s=0.0)
        windows.add(IterationSummary(0, phase, time_s, [gpu]))  # type: ignore[arg-type]


def test_planned_iterations_stand_between_two_windows():
    windows = BaselineWindows()
    feed(windows, "baseline", 9.0, 2.0, 2.0)  # the run's first iteration does not count
    feed(windows, "sweep", 3.0)
    feed(windows, "planned", 9.0, *[2.1] * 6)  # the first one still contains the change of clocks
    assert windows.interpolated() is None  # one window
    feed(windows, "baseline", 9.0, 2.2, 2.2)
    feed(windows, "planned", 9.0, 2.1, 2.1)
    found = windows.interpolated()
    assert found is not None
    assert found.windows == 2
    assert found.drift_percent == pytest.approx(10.0)
    assert found.time_s == pytest.approx((6 * 2.1 + 2 * 2.2) / 8)  # half-way between 2.0 and 2.2, then the last one's
    assert found.energy_j == pytest.approx(100 * found.time_s)


def test_an_evaluation_does_not_end_a_window():
    windows = BaselineWindows()
    feed(windows, "baseline", 9.0, 2.0)
    feed(windows, "evaluation", 1.0)
    feed(windows, "baseline", 9.0, 2.0)
    feed(windows, "sweep", 3.0)
    assert (windows.windows, windows.latest.count, windows.latest.time_s) == (1, 2, 2.0)


def test_an_iteration_without_energy_is_left_out():
    windows = BaselineWindows()
    feed(windows, "baseline", 9.0, 2.0)
    feed(windows, "baseline", 4.0, energy_j=math.nan)
    feed(windows, "planned", 2.0)
    assert windows.latest.energy_j == 200.0


def test_nothing_grows_with_the_run():
    windows = BaselineWindows()
    for _ in range(100):
        feed(windows, "baseline", 2.0, 2.0, 2.0)
        feed(windows, "planned", *[2.0] * 5)
    assert windows.windows == 100
    assert all(not isinstance(value, list | dict) for value in vars(windows).values())
