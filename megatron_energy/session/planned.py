"""A plan in force: what it means for every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.observe.plan_text import PlannedGpus
from megatron_energy.planning.plan import Plan, Segment, TransitionRequest, UnitPlan
from megatron_energy.records.steps import ClockRequest
from megatron_energy.session.directive import ITERATION_BEGIN, Directive, TransitionPoint


@dataclass(frozen=True)
class PlannedRun:
    """A plan in force, seen from a run."""

    plan: Plan
    stage_of_rank: Sequence[int]
    version: int = 1

    @property
    def policy(self) -> str:
        """How its clocks were chosen."""
        return self.plan.policy

    @property
    def expected_time_s(self) -> float:
        """Iteration time that the plan expects."""
        return self.plan.expected.iteration_s

    @property
    def expected_energy_j(self) -> float:
        """Joules per iteration of all GPUs that the plan expects."""
        return self.plan.expected.energy_j

    @property
    def bound_saved_percent(self) -> float | None:
        """What no plan can exceed."""
        return self.plan.expected.bound_saved_percent

    @property
    def switches_mean(self) -> float:
        """Switches per GPU and iteration, mean."""
        return self.plan.switches_mean

    @property
    def switches_max(self) -> int:
        """Switches per GPU and iteration, at most."""
        return self.plan.switches_max

    def save(self, path: Path) -> None:
        """Write the plan."""
        self.plan.save(path)

    def directive(self, rank: int) -> Directive:
        """What a rank does in every iteration under the plan."""
        return Directive("planned", _requests(self._unit(rank).requests), self.version)

    def activation(self, rank: int) -> Directive:
        """The first of them: the clock that the iteration begins with is requested too, as no iteration before has done it."""
        usual = self.directive(rank)
        first = ClockRequest(first_clock_mhz(self._unit(rank)))
        at_begin = (first, *usual.requests.get(ITERATION_BEGIN, ()))
        return Directive(usual.phase, {**usual.requests, ITERATION_BEGIN: at_begin}, usual.plan_version)

    def _unit(self, rank: int) -> UnitPlan:
        return self.plan.unit(self.stage_of_rank[rank], rank)

    def per_stage(self) -> list[PlannedGpus]:
        """The plan's segments for a report; ranks of a stage apart where their clocks differ."""
        return [
            PlannedGpus(
                f"stage {u.stage}" + (f", ranks {u.ranks}" if u.ranks else ""),
                self.plan.gpus_of(u),
                [(_place(s), s.clock_mhz) for s in u.segments],
            )
            for u in self.plan.units
        ]


def first_clock_mhz(unit: UnitPlan) -> int:
    """The clock of the iteration's first operation: the last segment's, unless a segment begins there.

    Segments are listed in the order of the iteration, so the wrapped one is in force before the first begins.
    """
    first = unit.segments[0]
    begins_iteration = (first.kind, first.chunk, first.microbatch) == ("forward", 0, 0)
    return first.clock_mhz if begins_iteration else unit.segments[-1].clock_mhz


def _requests(requests: Sequence[TransitionRequest]) -> dict[TransitionPoint, tuple[ClockRequest, ...]]:
    found: dict[TransitionPoint, tuple[ClockRequest, ...]] = {}
    for r in requests:
        point: TransitionPoint = (r.kind, r.chunk, r.microbatch, r.edge)
        found[point] = (*found.get(point, ()), ClockRequest(r.clock_mhz, r.delay_s, r.ahead, r.raise_in_s))
    return found


def _place(segment: Segment) -> str:
    if segment.kind in ("forward", "backward"):
        return f"{segment.kind} {segment.microbatch}, chunk {segment.chunk}"
    return segment.kind
