"""The baseline between its windows."""

import math

import pytest

from megatron_energy.observe.baseline import BaselineWindows, against_interpolated
from megatron_energy.observe.phases import Phases
from megatron_energy.records.summary import GpuSummary, IterationSummary


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
    assert (windows.count, windows.latest.count, windows.latest.time_s) == (1, 2, 2.0)


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
    assert windows.count == 100
    assert all(not isinstance(value, list | dict) for value in vars(windows).values())


def test_a_report_compares_with_what_lies_between():
    windows, phases = BaselineWindows(), Phases()

    class Both:
        def add(self, summary: IterationSummary) -> None:
            windows.add(summary)
            phases.add(summary)

    both = Both()
    feed(both, "baseline", 9.0, 2.0, 2.0)  # type: ignore[arg-type]
    feed(both, "planned", 9.0, *[2.1] * 6)  # type: ignore[arg-type]
    feed(both, "baseline", 9.0, 2.2)  # type: ignore[arg-type]
    feed(both, "maximum", 2.2)  # type: ignore[arg-type]
    found = against_interpolated(phases.windows(), windows.interpolated())
    assert found.baseline is not None and found.planned is not None
    assert phases.windows().baseline.time_s == pytest.approx((2.0 + 2.0 + 2.2) / 3)  # type: ignore[union-attr]
    assert found.baseline.time_s == pytest.approx(2.1)
    assert found.baseline.iteration_energy_j == pytest.approx(210.0)
    assert found.baseline.gpus[0].power_w == pytest.approx(100.0)
    assert (found.baseline_windows, found.drift_percent) == (2, pytest.approx(10.0))
    assert found.planned.iteration_energy_j == pytest.approx(210.0)  # so nothing is saved, where the mean would show a saving of -1.6%
    assert against_interpolated(phases.windows(), None).drift_percent is None
