"""One GPU, or several, before and under a plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_energy.observe.interval import GpuInterval, Interval
from megatron_energy.observe.places import place_of
from megatron_energy.observe.plain import Plain
from megatron_energy.records.summary import GpuSummary


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One GPU, or all of them. None: not measured, or no such phase in this run.

    Attributes:
        gpu: where it stands; None for the row of all GPUs.
        baseline_j, planned_j: J per iteration.
        baseline_w, planned_w: mean power in W.
        baseline_mhz, planned_mhz: mean SM clock.
        baseline_waiting_percent, waiting_percent: share of the time spent waiting, in the baseline and under the plan.
        requests: clock requests per iteration under the plan (mean over the GPUs in the row of all GPUs).
        late_raises: raises that came too late, in all planned iterations.
        dropped_lowers: lowers not issued: too near to the next raise, or to the request before, likewise.
    """

    gpu: dict[str, str | int] | None
    baseline_j: float | None
    planned_j: float | None
    baseline_w: float | None
    planned_w: float | None
    baseline_mhz: float | None
    planned_mhz: float | None
    baseline_waiting_percent: float | None
    waiting_percent: float | None
    requests: float | None
    late_raises: int
    dropped_lowers: int

    @property
    def saved_percent(self) -> float | None:
        """Energy saved against the baseline; None without both."""
        if not self.baseline_j or self.planned_j is None:
            return None
        return 100 * (1 - self.planned_j / self.baseline_j)

    def to_dict(self) -> dict[str, Plain]:
        """As plain values, for summary.json."""
        return {
            **(self.gpu or {}),
            "baseline_energy_j": self.baseline_j,
            "energy_j": self.planned_j,
            "saved_percent": self.saved_percent,
            "baseline_power_w": self.baseline_w,
            "power_w": self.planned_w,
            "baseline_clock_mhz": self.baseline_mhz,
            "clock_mhz": self.planned_mhz,
            "baseline_waiting_percent": self.baseline_waiting_percent,
            "waiting_percent": self.waiting_percent,
            "requests": self.requests,
            "late_raises": self.late_raises,
            "dropped_lowers": self.dropped_lowers,
        }


def rows_of(baseline: Interval | None, planned: Interval | None) -> tuple[ReportRow, ...]:
    """GPU by GPU, in the order (node, index)."""
    before, after = _by_gpu(baseline), _by_gpu(planned)
    everyone = {key: g.gpu for key, g in (*before.items(), *after.items())}
    return tuple(_row(everyone[key], before.get(key), after.get(key)) for key in sorted(everyone, key=lambda key: place_of(*key)))


def aggregate(rows: Sequence[ReportRow]) -> ReportRow:
    """Several GPUs as one row: energy, power, late raises and dropped lowers added, of everything else the mean."""
    return ReportRow(
        gpu=None,
        baseline_j=_add(r.baseline_j for r in rows),
        planned_j=_add(r.planned_j for r in rows),
        baseline_w=_add(r.baseline_w for r in rows),
        planned_w=_add(r.planned_w for r in rows),
        baseline_mhz=_average(r.baseline_mhz for r in rows),
        planned_mhz=_average(r.planned_mhz for r in rows),
        baseline_waiting_percent=_average(r.baseline_waiting_percent for r in rows),
        waiting_percent=_average(r.waiting_percent for r in rows),
        requests=_average(r.requests for r in rows),
        late_raises=sum(r.late_raises for r in rows),
        dropped_lowers=sum(r.dropped_lowers for r in rows),
    )


def _by_gpu(interval: Interval | None) -> Mapping[tuple[str, int], GpuInterval]:
    return {(g.gpu.node, g.gpu.gpu): g for g in interval.gpus} if interval else {}


def _row(where: GpuSummary, baseline: GpuInterval | None, planned: GpuInterval | None) -> ReportRow:
    return ReportRow(
        gpu={"rank": where.rank, "node": where.node, "gpu": where.gpu, "uuid": where.uuid, "stage": where.stage},
        baseline_j=known(baseline.iteration_energy_j if baseline else None),
        planned_j=known(planned.iteration_energy_j if planned else None),
        baseline_w=known(baseline.power_w if baseline else None),
        planned_w=known(planned.power_w if planned else None),
        baseline_mhz=known(baseline.clock_mhz if baseline else None),
        planned_mhz=known(planned.clock_mhz if planned else None),
        baseline_waiting_percent=known(baseline.waiting_percent if baseline else None),
        waiting_percent=known(planned.waiting_percent if planned else None),
        requests=known(planned.requests if planned else None),
        late_raises=planned.late_raises if planned else 0,
        dropped_lowers=planned.dropped_lowers if planned else 0,
    )


def known(value: float | None) -> float | None:
    """The value, or None where it was not measured."""
    return value if value is not None and math.isfinite(value) else None


def _add(values: Iterable[float | None]) -> float | None:
    """Sum; None as soon as one is missing, since a sum without a member would read as a saving."""
    found = list(values)
    present = [v for v in found if v is not None]
    return math.fsum(present) if present and len(present) == len(found) else None


def _average(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return math.fsum(found) / len(found) if found else None
