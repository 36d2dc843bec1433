"""What one rank's GPU did in one iteration: measured on a real GPU, or settled by the emulation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Activity: TypeAlias = Literal["forward", "backward", "wait", "grad-sync", "optimizer", "other"]


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a GPU's time line. Spans of a GPU are in order, do not overlap, and may leave gaps (idle)."""

    activity: Activity
    chunk: int  # -1 where it does not apply
    microbatch: int  # -1 where it does not apply
    start_s: float
    end_s: float
    clock_mhz: float  # time-weighted mean of the SM clock in force
    steady_clock: bool = True  # one clock throughout
    throttled: bool = False  # the GPU held the clock below the request (power cap)


@dataclass(slots=True)
class RankIteration:
    """One rank, one iteration. Times are seconds on one clock common to all ranks of the job."""

    rank: int
    iteration: int
    start_s: float
    end_s: float
    energy_j: float  # difference of the GPU's energy counter from start to end
    spans: list[Span] = field(default_factory=list)
    clock_changes: list[tuple[float, int]] = field(default_factory=list)  # (s, MHz): it ran at this clock from then on; first at start_s
    energy_samples: list[tuple[float, int]] = field(default_factory=list)  # (s, mJ): counter readings as its sensor updates
    requests: int = 0  # clock requests issued
    late_raises: int = 0  # raises in force only after the operation that needed them began
    dropped_lowers: int = 0  # lowers not issued: too near to the next raise, or to the request before
    evaluation: bool = False  # forward-only iteration
    emulated: bool = False

    @property
    def time_s(self) -> float:
        """Length of the iteration in seconds."""
        return self.end_s - self.start_s

    @property
    def power_w(self) -> float:
        """Mean power over the iteration in W; 0 for an empty iteration."""
        return self.energy_j / self.time_s if self.time_s > 0 else 0.0

    @property
    def mean_clock_mhz(self) -> float:
        """SM clock that the GPU ran at (under its power cap too), mean weighted by time; NaN where it is not known."""
        changes = self.clock_changes
        if not changes or self.time_s <= 0:
            return float("nan")
        ends = [t for t, _ in changes[1:]] + [self.end_s]
        return sum((end - max(start, self.start_s)) * mhz for (start, mhz), end in zip(changes, ends, strict=True)) / self.time_s

    @property
    def throttled_s(self) -> float:
        """Seconds of spans in which the power cap held the clock below the request."""
        return sum(s.end_s - s.start_s for s in self.spans if s.throttled)


def job_time_s(records: Sequence[RankIteration]) -> float:
    """Length of one iteration of a job in seconds, from all ranks' records of it: from one first begin to the next.

    An iteration begins when its first rank begins it. So iterations and evaluations in a row add up to the time of the run, and
    ranks that begin one after the other, as stages do after an evaluation, do not shorten an iteration by what the first ones
    have already done. Straight after an evaluation an iteration is still not like others, up to a few percent longer: a slower
    stage has yet to finish the evaluation while the first one begins.
    """
    return min(r.end_s for r in records) - min(r.start_s for r in records)
