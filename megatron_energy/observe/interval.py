"""Several iterations taken together: what TensorBoard shows per log interval and the report per phase.

Three energies are kept apart. *Energy* is what the counters advanced by, evaluation iterations included. *Energy per
iteration* is the mean over training iterations only, so that it can be compared. Both are in J; power is energy over time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_energy.records.summary import GpuSummary, IterationSummary


@dataclass(frozen=True, slots=True)
class GpuInterval:
    """One GPU over an interval. NaN where nothing was measured.

    Attributes:
        gpu: which GPU this is (the measurements of this field are those of its last iteration).
        energy_j: everything its counter advanced by, evaluation included.
        iteration_energy_j: mean over the training iterations.
        power_w: mean over the training iterations, weighted by time.
        clock_mhz: SM clock, mean over the training iterations, weighted by time.
        waiting_percent: share of the training iterations spent in communication waits.
        throttled_percent: share of the training iterations in which the GPU held its clock below the request.
        requests: clock requests per training iteration.
        late_raises: raises that came into force too late, in the whole interval.
    """

    gpu: GpuSummary
    energy_j: float
    iteration_energy_j: float
    power_w: float
    clock_mhz: float
    waiting_percent: float
    throttled_percent: float
    requests: float
    late_raises: int


@dataclass(frozen=True, slots=True)
class Interval:
    """The whole job over an interval.

    Attributes:
        iterations: training iterations in it.
        evaluations: evaluation (forward-only) iterations in it.
        time_s: mean time of a training iteration.
        expected_time_s, expected_energy_j: the plan's expectation per iteration; None without a plan.
        saved_percent, slowdown_percent: means against the baseline; None before there is one.
        saved_j: energy that the baseline would have used on top, over the iterations with a plan.
        plan_version: of the last iteration; 0 without a plan.
        emulated: any of the iterations ran on emulated GPUs.
        gpus: every GPU once, in the order (node, index).
    """

    iterations: int
    evaluations: int
    time_s: float
    expected_time_s: float | None
    expected_energy_j: float | None
    saved_percent: float | None
    slowdown_percent: float | None
    saved_j: float
    plan_version: int
    emulated: bool
    gpus: tuple[GpuInterval, ...]

    @property
    def energy_j(self) -> float:
        """Everything that all counters advanced by; NaN if one GPU could not be measured."""
        return math.fsum(g.energy_j for g in self.gpus)

    @property
    def iteration_energy_j(self) -> float:
        """All GPUs, mean per training iteration; NaN if one GPU could not be measured."""
        return math.fsum(g.iteration_energy_j for g in self.gpus)


def combine(summaries: Sequence[IterationSummary]) -> Interval:
    """Take iterations together.

    A GPU that several ranks report (they share it) is counted once per iteration.

    Args:
        summaries: at least one iteration, in the order they ran.
    """
    training = [s for s in summaries if s.phase != "evaluation"]
    last = (training or summaries)[-1]
    return Interval(
        iterations=len(training),
        evaluations=len(summaries) - len(training),
        time_s=mean(s.time_s for s in training),
        expected_time_s=last.expected_time_s,
        expected_energy_j=last.expected_energy_j,
        saved_percent=_optional_mean(s.saved_percent for s in training),
        slowdown_percent=_optional_mean(s.slowdown_percent for s in training),
        saved_j=math.fsum(_saved_j(s) for s in training),
        plan_version=last.plan_version,
        emulated=any(s.emulated for s in summaries),
        gpus=_combine_gpus(summaries),
    )


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def finite(values: Iterable[float]) -> list[float]:
    """The values that were measured: neither NaN nor infinite."""
    return [v for v in values if math.isfinite(v)]


def _optional_mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return mean(known) if known else None


def _saved_j(summary: IterationSummary) -> float:
    """What the baseline would have used on top: e = b (1 - s), so b - e = e s / (1 - s)."""
    if summary.phase != "planned" or summary.saved_percent is None or summary.saved_percent >= 100:
        return 0.0
    return summary.energy_j * summary.saved_percent / (100 - summary.saved_percent)


def _combine_gpus(summaries: Sequence[IterationSummary]) -> tuple[GpuInterval, ...]:
    history: dict[tuple[str, int, str], list[tuple[IterationSummary, GpuSummary]]] = {}
    for summary in summaries:
        once = {g.uuid: g for g in reversed(summary.gpus)}
        for uuid, gpu in once.items():
            history.setdefault((gpu.node, gpu.gpu, uuid), []).append((summary, gpu))
    return tuple(_combine_gpu(history[key]) for key in sorted(history))


def _combine_gpu(history: Sequence[tuple[IterationSummary, GpuSummary]]) -> GpuInterval:
    training = [(s.time_s, g) for s, g in history if s.phase != "evaluation"]
    total_s = math.fsum(t for t, _ in training)

    def weighted(values: Iterable[float]) -> float:
        return math.fsum(values) / total_s if total_s > 0 else math.nan

    return GpuInterval(
        gpu=history[-1][1],
        energy_j=math.fsum(g.energy_j for _, g in history),
        iteration_energy_j=mean(g.energy_j for _, g in training),
        power_w=weighted(g.energy_j for _, g in training),
        clock_mhz=weighted(g.clock_mhz * t for t, g in training),
        waiting_percent=100 * weighted(g.waiting_s for _, g in training),
        throttled_percent=100 * weighted(g.throttled_s for _, g in training),
        requests=mean(g.requests for _, g in training),
        late_raises=sum(g.late_raises for _, g in training),
    )
