"""Several iterations taken together: what TensorBoard shows per log interval and the report per phase.

Three energies are kept apart. *Energy* is what the counters advanced by, evaluation iterations included. *Energy per
iteration* is the mean over training iterations only, so that it can be compared. Both are in J; power is energy over time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from megatron_energy.observe.places import place_of
from megatron_energy.records.summary import GpuSummary, IterationSummary


@dataclass(frozen=True, slots=True)
class GpuInterval:
    """One GPU over an interval. NaN where nothing was measured.

    Attributes:
        gpu: which GPU this is (the measurements of this field are those of its last iteration).
        energy_j: everything its counter advanced by, evaluation included.
        iteration_energy_j: mean over the training iterations in which its counter answered.
        power_w: mean over the same, weighted by time.
        clock_mhz: SM clock, mean over the training iterations, weighted by time.
        waiting_percent: share of the training iterations spent in communication waits.
        throttled_percent: share of the training iterations in which the GPU held its clock below the request.
        requests: clock requests per training iteration.
        late_raises: raises that came into force too late, in the whole interval.
        dropped_lowers: lowers not issued: too near to the next raise, or to the request before, in the whole interval.
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
    dropped_lowers: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """The whole job over an interval.

    Attributes:
        iterations: training iterations in it.
        stretches: how many rows of consecutive ones they are: an energy counter's steps blur both ends of each.
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
    stretches: int
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


@dataclass(slots=True)
class _Mean:
    """A mean that is made value by value; None values are left out."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class _GpuSums:
    """One GPU so far. ``*_s``: seconds; ``energy_j`` is everything, the rest is about training iterations."""

    last: GpuSummary
    energy_j: float = 0.0
    iteration_j: _Mean = field(default_factory=_Mean)
    counted_s: float = 0.0
    time_s: float = 0.0
    clock_mhz_s: float = 0.0
    waiting_s: float = 0.0
    throttled_s: float = 0.0
    requests: _Mean = field(default_factory=_Mean)
    late_raises: int = 0
    dropped_lowers: int = 0

    def add(self, gpu: GpuSummary, time_s: float, *, training: bool) -> None:
        self.last = gpu
        self.energy_j += gpu.energy_j
        if not training:
            return
        if math.isfinite(gpu.energy_j):
            self.iteration_j.add(gpu.energy_j)
            self.counted_s += time_s
        self.time_s += time_s
        self.clock_mhz_s += gpu.clock_mhz * time_s
        self.waiting_s += gpu.waiting_s
        self.throttled_s += gpu.throttled_s
        self.requests.add(gpu.requests)
        self.late_raises += gpu.late_raises
        self.dropped_lowers += gpu.dropped_lowers

    def interval(self) -> GpuInterval:
        return GpuInterval(
            gpu=self.last,
            energy_j=self.energy_j,
            iteration_energy_j=_or_nan(self.iteration_j.value),
            power_w=_share(self.iteration_j.total, self.counted_s),
            clock_mhz=_share(self.clock_mhz_s, self.time_s),
            waiting_percent=100 * _share(self.waiting_s, self.time_s),
            throttled_percent=100 * _share(self.throttled_s, self.time_s),
            requests=_or_nan(self.requests.value),
            late_raises=self.late_raises,
            dropped_lowers=self.dropped_lowers,
        )


class Totals:
    """Running sums over iterations: they take as much memory after a million of them as after one."""

    def __init__(self) -> None:
        self._last: IterationSummary | None = None
        self._time_s = _Mean()
        self._saved_percent, self._slowdown_percent = _Mean(), _Mean()
        self._saved_j = 0.0
        self._evaluations = self._stretches = 0
        self._emulated = False
        self._gpus: dict[tuple[str, int, str], _GpuSums] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to take together."""
        return self._last is not None

    def add(self, summary: IterationSummary) -> None:
        """Take in one iteration, in the order they ran. A GPU that several ranks report (they share it) is counted once."""
        training = summary.phase != "evaluation"
        self._emulated = self._emulated or summary.emulated
        for uuid, gpu in {g.uuid: g for g in reversed(summary.gpus)}.items():
            key = (gpu.node, gpu.gpu, uuid)
            sums = self._gpus.get(key)
            if sums is None:
                sums = self._gpus[key] = _GpuSums(gpu)
            sums.add(gpu, summary.time_s, training=training)
        last = self._last
        if not training:
            self._evaluations += 1
            self._last = last or summary
            return
        if last is None or last.phase == "evaluation" or summary.iteration != last.iteration + 1:
            self._stretches += 1
        self._time_s.add(summary.time_s)
        self._saved_percent.add(summary.saved_percent)
        self._slowdown_percent.add(summary.slowdown_percent)
        self._saved_j += _saved_j(summary)
        self._last = summary

    def interval(self) -> Interval:
        """What they come to; there must have been one."""
        last = self._last
        if last is None:
            raise ValueError("no iteration was added")
        return Interval(
            iterations=self._time_s.count,
            stretches=self._stretches,
            evaluations=self._evaluations,
            time_s=_or_nan(self._time_s.value),
            expected_time_s=last.expected_time_s,
            expected_energy_j=last.expected_energy_j,
            saved_percent=self._saved_percent.value,
            slowdown_percent=self._slowdown_percent.value,
            saved_j=self._saved_j,
            plan_version=last.plan_version,
            emulated=self._emulated,
            gpus=tuple(self._gpus[key].interval() for key in sorted(self._gpus, key=lambda key: place_of(key[0], key[1]))),
        )


def combine(summaries: Sequence[IterationSummary]) -> Interval:
    """Take iterations together; at least one, in the order they ran."""
    totals = Totals()
    for summary in summaries:
        totals.add(summary)
    return totals.interval()


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def finite(values: Iterable[float]) -> list[float]:
    """The values that were measured: neither NaN nor infinite."""
    return [v for v in values if math.isfinite(v)]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _share(total: float, time_s: float) -> float:
    return total / time_s if time_s > 0 else math.nan


def _saved_j(summary: IterationSummary) -> float:
    """What the baseline would have used on top: e = b (1 - s), so b - e = e s / (1 - s)."""
    if summary.phase != "planned" or summary.saved_percent is None or summary.saved_percent >= 100:
        return 0.0
    return summary.energy_j * summary.saved_percent / (100 - summary.saved_percent)
