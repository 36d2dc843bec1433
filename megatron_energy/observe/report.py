"""What the run achieved, against its own baseline window: numbers, and summary.json."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.observe.facts import PlanFacts
from megatron_energy.observe.interval import GpuInterval, Interval, combine
from megatron_energy.observe.plain import Plain, plain, write_json
from megatron_energy.records.summary import GpuSummary, IterationSummary

SCHEMA = "megatron-energy/summary"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One GPU, or all of them. None: not measured, or no such phase in this run.

    Attributes:
        gpu: where it stands; None for the row of all GPUs.
        baseline_j, planned_j: J per iteration.
        baseline_w, planned_w: mean power in W.
        planned_mhz: mean SM clock under the plan.
        waiting_percent: share of the time spent waiting under the plan.
        requests: clock requests per iteration under the plan (mean over the GPUs in the row of all GPUs).
        late_raises: raises that came too late, in all planned iterations.
    """

    gpu: dict[str, str | int] | None
    baseline_j: float | None
    planned_j: float | None
    baseline_w: float | None
    planned_w: float | None
    planned_mhz: float | None
    waiting_percent: float | None
    requests: float | None
    late_raises: int

    @property
    def saved_percent(self) -> float | None:
        """Energy saved against the baseline; None without both."""
        if not self.baseline_j or self.planned_j is None:
            return None
        return 100 * (1 - self.planned_j / self.baseline_j)


@dataclass(frozen=True)
class Report:
    """The whole run.

    Attributes:
        facts: the plan and its files.
        emulated: the figures come from emulated GPUs.
        baseline_iterations, planned_iterations: how many iterations stand behind the figures.
        baseline_s, planned_s: mean time of an iteration; None where there was none.
        total: all GPUs.
        gpus: GPU by GPU, in the order (node, index).
    """

    facts: PlanFacts
    emulated: bool
    baseline_iterations: int
    planned_iterations: int
    baseline_s: float | None
    planned_s: float | None
    total: ReportRow
    gpus: tuple[ReportRow, ...]

    @property
    def slowdown_percent(self) -> float | None:
        """Time lost against the baseline; None without both."""
        if not self.baseline_s or self.planned_s is None:
            return None
        return 100 * (self.planned_s / self.baseline_s - 1)

    @property
    def bound_share_percent(self) -> float | None:
        """Measured saving as a share of the best possible one; None where either is not known or nothing could be saved."""
        if self.total.saved_percent is None or not self.facts.bound_saved_percent:
            return None
        return 100 * self.total.saved_percent / self.facts.bound_saved_percent

    def to_dict(self) -> dict[str, Plain]:
        """Everything as plain values, for summary.json; unknown figures are null."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "emulated": self.emulated,
            "policy": self.facts.policy,
            "baseline_iterations": self.baseline_iterations,
            "planned_iterations": self.planned_iterations,
            "baseline_iteration_s": self.baseline_s,
            "iteration_s": self.planned_s,
            "slowdown_percent": self.slowdown_percent,
            "baseline_energy_j": self.total.baseline_j,
            "energy_j": self.total.planned_j,
            "saved_percent": self.total.saved_percent,
            "bound_saved_percent": self.facts.bound_saved_percent,
            "bound_share_percent": self.bound_share_percent,
            "expected_iteration_s": self.facts.expected_time_s,
            "expected_energy_j": self.facts.expected_energy_j,
            "switches_per_gpu_mean": self.facts.switches_mean,
            "switches_per_gpu_max": self.facts.switches_max,
            "requests_per_gpu_mean": self.total.requests,
            "late_raises": self.total.late_raises,
            "files": {
                "plan": plain(self.facts.plan_path),
                "timeline": plain(self.facts.timeline_path),
                "tensorboard": plain(self.facts.tensorboard_dir),
            },
            "gpus": [_row_dict(row) for row in self.gpus],
        }

    def save(self, path: str | Path) -> None:
        """Write summary.json; a reader never sees half a file."""
        write_json(path, self.to_dict())


def build_report(summaries: Sequence[IterationSummary], facts: PlanFacts) -> Report:
    """Compare the planned iterations of a run with its baseline window.

    Args:
        summaries: iterations of the run; phases other than baseline and planned are left out. The window measured
            with ``measure`` counts as a baseline.
        facts: the plan, and where its files are.
    """
    before = _phase(summaries, "baseline", "measure")
    under_plan = _phase(summaries, "planned")
    baseline, planned = _by_gpu(before), _by_gpu(under_plan)
    everyone = {key: g.gpu for key, g in (baseline | planned).items()}
    gpus = tuple(_row(everyone[key], baseline.get(key), planned.get(key)) for key in sorted(everyone))
    return Report(
        facts=facts,
        emulated=any(s.emulated for s in summaries),
        baseline_iterations=before.iterations if before else 0,
        planned_iterations=under_plan.iterations if under_plan else 0,
        baseline_s=before.time_s if before else None,
        planned_s=under_plan.time_s if under_plan else None,
        total=aggregate(gpus),
        gpus=gpus,
    )


def aggregate(rows: Sequence[ReportRow]) -> ReportRow:
    """Several GPUs as one row: energy, power and late raises added, of everything else the mean."""
    return ReportRow(
        gpu=None,
        baseline_j=_add(r.baseline_j for r in rows),
        planned_j=_add(r.planned_j for r in rows),
        baseline_w=_add(r.baseline_w for r in rows),
        planned_w=_add(r.planned_w for r in rows),
        planned_mhz=_average(r.planned_mhz for r in rows),
        waiting_percent=_average(r.waiting_percent for r in rows),
        requests=_average(r.requests for r in rows),
        late_raises=sum(r.late_raises for r in rows),
    )


def _phase(summaries: Sequence[IterationSummary], *phases: str) -> Interval | None:
    chosen = [s for s in summaries if s.phase in phases]
    return combine(chosen) if chosen else None


def _by_gpu(interval: Interval | None) -> dict[tuple[str, int], GpuInterval]:
    return {(g.gpu.node, g.gpu.gpu): g for g in interval.gpus} if interval else {}


def _row(where: GpuSummary, baseline: GpuInterval | None, planned: GpuInterval | None) -> ReportRow:
    return ReportRow(
        gpu={"rank": where.rank, "node": where.node, "gpu": where.gpu, "uuid": where.uuid, "stage": where.stage},
        baseline_j=_known(baseline.iteration_energy_j if baseline else None),
        planned_j=_known(planned.iteration_energy_j if planned else None),
        baseline_w=_known(baseline.power_w if baseline else None),
        planned_w=_known(planned.power_w if planned else None),
        planned_mhz=_known(planned.clock_mhz if planned else None),
        waiting_percent=_known(planned.waiting_percent if planned else None),
        requests=_known(planned.requests if planned else None),
        late_raises=planned.late_raises if planned else 0,
    )


def _row_dict(row: ReportRow) -> dict[str, Plain]:
    return {
        **(row.gpu or {}),
        "baseline_energy_j": row.baseline_j,
        "energy_j": row.planned_j,
        "saved_percent": row.saved_percent,
        "baseline_power_w": row.baseline_w,
        "power_w": row.planned_w,
        "clock_mhz": row.planned_mhz,
        "waiting_percent": row.waiting_percent,
        "requests": row.requests,
        "late_raises": row.late_raises,
    }


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _add(values: Iterable[float | None]) -> float | None:
    """Sum; None as soon as one is missing, since a sum without a member would read as a saving."""
    found = list(values)
    known = [v for v in found if v is not None]
    return math.fsum(known) if known and len(known) == len(found) else None


def _average(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return math.fsum(found) / len(found) if found else None
