"""What the run achieved, against its own baseline window: numbers, and summary.json."""

import math
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.interval import Interval
from megatron_energy.observe.phases import Windows
from megatron_energy.observe.plain import Plain, plain, write_json
from megatron_energy.observe.report_rows import ReportRow, aggregate, known, rows_of
from megatron_energy.observe.resolution import LEAST_BOUND_PERCENT, READABLE_PERCENT, SHARE_NEEDS, resolution_percent

SCHEMA = "megatron-energy/summary"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SweepCost:
    """What learning the profile cost on top of the baseline.

    Attributes:
        iterations: of the sweep.
        energy_j: J more than so many baseline iterations; negative: less, as slower clocks save. None: not known.
        resolution_j: how far that may be off, by the counter's steps.
        time_s: s more than they.
        paid_back_after: planned iterations that save as much; None where the sweep cost nothing, or the saving is not known.
    """

    iterations: int
    energy_j: float | None
    resolution_j: float | None
    time_s: float
    paid_back_after: int | None


@dataclass(frozen=True)
class Report:
    """The whole run.

    Attributes:
        facts: the plan and its files.
        emulated: the figures come from emulated GPUs.
        windows: the iterations behind the figures.
        total: all GPUs.
        gpus: GPU by GPU, in the order (node, index).
    """

    facts: PlanFacts
    emulated: bool
    windows: Windows
    total: ReportRow
    gpus: tuple[ReportRow, ...]

    @property
    def baseline_name(self) -> str:
        """What the iterations before any plan are called: they are a baseline only where something was to follow."""
        facts = self.facts
        tried = self.windows.planned is not None or self.windows.sweep is not None
        return "baseline" if tried or facts.expected_energy_j is not None or facts.off_reason is not None else "measured"

    @property
    def baseline_iterations(self) -> int:
        """Iterations behind the baseline's figures."""
        return self.windows.baseline.iterations if self.windows.baseline else 0

    @property
    def planned_iterations(self) -> int:
        """Iterations behind the plan's figures."""
        return self.windows.planned.iterations if self.windows.planned else 0

    @property
    def baseline_s(self) -> float | None:
        """Mean time of a baseline iteration; None where there was none."""
        return self.windows.baseline.time_s if self.windows.baseline else None

    @property
    def planned_s(self) -> float | None:
        """Mean time of an iteration under the plan; None where there was none."""
        return self.windows.planned.time_s if self.windows.planned else None

    @property
    def slowdown_percent(self) -> float | None:
        """Time lost against the baseline; None without both."""
        if not self.baseline_s or self.planned_s is None:
            return None
        return 100 * (self.planned_s / self.baseline_s - 1)

    def resolution_percent(self, window: Interval | None) -> float | None:
        """How far a window's energies may be off, by the steps of the counter; None without the window."""
        return resolution_percent(window, self.facts.counter_step_s) if window is not None else None

    @property
    def saved_resolution_percent(self) -> float | None:
        """How far the saving may be off, by the steps of the energy counter, in percentage points; None without both windows."""
        before, after = self.resolution_percent(self.windows.baseline), self.resolution_percent(self.windows.planned)
        return None if before is None or after is None else before + after

    @property
    def readable(self) -> bool:
        """Whether the windows are long enough for the energy counter to tell energies at all."""
        found = [self.resolution_percent(window) for window in (self.windows.baseline, self.windows.planned)]
        return all(percent <= READABLE_PERCENT for percent in found if percent is not None)

    @property
    def saving_is_resolved(self) -> bool:
        """Whether the saving is more than what the counter's steps leave open."""
        saved, resolution = self.total.saved_percent, self.saved_resolution_percent
        return saved is not None and resolution is not None and abs(saved) >= resolution

    @property
    def bound_share_percent(self) -> float | None:
        """Measured saving as a share of the best possible one; None where that cannot be told, or nothing could be saved."""
        saved, bound, resolution = self.total.saved_percent, self.facts.bound_saved_percent, self.saved_resolution_percent
        if saved is None or bound is None or resolution is None:
            return None
        return 100 * saved / bound if bound >= max(LEAST_BOUND_PERCENT, SHARE_NEEDS * resolution) else None

    @property
    def sweep(self) -> SweepCost | None:
        """What learning the profile cost; None where there was no sweep, or nothing to compare it with."""
        sweep, baseline = self.windows.sweep, self.windows.baseline
        if sweep is None or baseline is None:
            return None
        count, step_s = sweep.iterations, self.facts.counter_step_s
        energy_j = known(count * (sweep.iteration_energy_j - baseline.iteration_energy_j))
        percent = resolution_percent(sweep, step_s) + resolution_percent(baseline, step_s)
        resolution_j = known(count * baseline.iteration_energy_j * percent / 100)
        costs = energy_j is not None and resolution_j is not None and energy_j >= resolution_j
        return SweepCost(
            count,
            energy_j,
            resolution_j,
            count * (sweep.time_s - baseline.time_s),
            self._paid_back_after(energy_j) if costs and energy_j is not None else None,
        )

    def _paid_back_after(self, cost_j: float) -> int | None:
        before_j, after_j = self.total.baseline_j, self.total.planned_j
        if not self.saving_is_resolved or before_j is None or after_j is None or after_j >= before_j:
            return None
        return math.ceil(cost_j / (before_j - after_j))

    def to_dict(self) -> dict[str, Plain]:
        """Everything as plain values, for summary.json; unknown figures are null."""
        facts, untouched = self.facts, self.windows.untouched
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "emulated": self.emulated,
            "policy": facts.policy,
            "plan_policy": facts.plan_policy,
            "off_reason": facts.off_reason,
            "baseline_iterations": self.baseline_iterations,
            "planned_iterations": self.planned_iterations,
            "left_out_iterations": self.windows.left_out,
            "baseline_windows": self.windows.baseline_windows,
            "baseline_drift_percent": self.windows.drift_percent,
            "baseline_iteration_s": self.baseline_s,
            "iteration_s": self.planned_s,
            "slowdown_percent": self.slowdown_percent,
            "baseline_energy_j": self.total.baseline_j,
            "energy_j": self.total.planned_j,
            "saved_percent": self.total.saved_percent,
            "saved_resolution_percent": known(self.saved_resolution_percent),
            "bound_saved_percent": facts.bound_saved_percent,
            "bound_share_percent": self.bound_share_percent,
            "expected_iteration_s": facts.expected_time_s,
            "expected_energy_j": facts.expected_energy_j,
            "expected_saved_percent": facts.expected_saved_percent,
            "expected_slowdown_percent": facts.expected_slowdown_percent,
            "switches_per_gpu_mean": facts.switches_mean,
            "switches_per_gpu_max": facts.switches_max,
            "requests_per_gpu_mean": self.total.requests,
            "late_raises": self.total.late_raises,
            "dropped_lowers": self.total.dropped_lowers,
            "untouched": None if untouched is None else _window_dict(untouched),
            "sweep": plain(self.sweep),
            "files": {
                "plan": plain(facts.plan_path),
                "timeline": plain(facts.timeline_path),
                "tensorboard": plain(facts.tensorboard_dir),
            },
            "gpus": [row.to_dict() for row in self.gpus],
        }

    def save(self, path: str | Path) -> None:
        """Write summary.json; a reader never sees half a file."""
        write_json(path, self.to_dict())


def build_report(windows: Windows, facts: PlanFacts) -> Report:
    """Compare the planned iterations of a run with its baseline window.

    Args:
        windows: the iterations of the run, by what they were for.
        facts: the plan, and where its files are.
    """
    gpus = rows_of(windows.baseline, windows.planned)
    found = (windows.baseline, windows.planned, windows.untouched, windows.sweep)
    return Report(facts, any(w.emulated for w in found if w is not None), windows, aggregate(gpus), gpus)


def _window_dict(window: Interval) -> dict[str, Plain]:
    return {"iterations": window.iterations, "iteration_s": plain(window.time_s), "energy_j": plain(window.iteration_energy_j)}
