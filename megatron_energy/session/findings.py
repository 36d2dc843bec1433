"""What the iterations of a run have shown so far."""

import math
from collections.abc import Generator
from dataclasses import dataclass, field

from megatron_energy.observe.baseline import BaselineWindows
from megatron_energy.profiles.profile import Profile
from megatron_energy.records.iteration import RankIteration, job_time_s
from megatron_energy.records.steps import Program
from megatron_energy.session.directive import Directive
from megatron_energy.session.planned import PlannedRun
from megatron_energy.session.signals import QUIET, Signals


@dataclass(frozen=True)
class IterationData:
    """One training iteration of all ranks, by rank.

    Attributes:
        records, programs: what every rank did.
        after_evaluation: an evaluation came right before; see :func:`~megatron_energy.records.iteration.job_time_s`.
        signals: what else is known of its clocks.
    """

    records: list[RankIteration]
    programs: list[Program]
    after_evaluation: bool = False
    signals: Signals = QUIET

    @property
    def time_s(self) -> float:
        """Length of the iteration in seconds."""
        return job_time_s(self.records)

    @property
    def energy_j(self) -> float:
        """Joules of all GPUs."""
        return sum(r.energy_j for r in self.records)

    @property
    def emulated(self) -> bool:
        """Whether these figures are emulated."""
        return any(r.emulated for r in self.records)


@dataclass
class Findings:
    """What the run has found out so far; written by the course, read by reports."""

    baseline: list[IterationData] = field(default_factory=list)
    windows: BaselineWindows = field(default_factory=BaselineWindows)  # the baseline in the course of the run
    profile: Profile | None = None
    planned: PlannedRun | None = None
    off_reason: str | None = None  # why clocks stay at maximum, where they do
    comparable: bool = True  # iterations are still what the baseline measured

    def start_over(self) -> None:
        """Iterations are of another length from here on. What was learned of single operations stays true."""
        self.baseline, self.windows, self.planned = [], BaselineWindows(), None

    @property
    def baseline_time_s(self) -> float | None:
        """Mean iteration time of the baseline window."""
        return sum(i.time_s for i in self.baseline) / len(self.baseline) if self.baseline else None

    @property
    def baseline_energy_j(self) -> float | None:
        """Mean joules of all GPUs per baseline iteration."""
        known = [i.energy_j for i in self.baseline if math.isfinite(i.energy_j)]  # an iteration whose counter failed is left out
        return sum(known) / len(known) if known else None

    @property
    def compared_with(self) -> tuple[float | None, float | None]:
        """Iteration time in s and joules of all GPUs of the latest baseline window."""
        latest = self.windows.latest
        return (latest.time_s, latest.energy_j) if self.windows.count > 1 else (self.baseline_time_s, self.baseline_energy_j)


Course = Generator[Directive | list[Directive], IterationData, None]
"""Yields the directives of the next iteration, by rank or one for all, and receives what that iteration did."""
