"""What no plan can mean, though every value has the right type: a file that was edited, or put together of two.

Everything here follows from the file alone. Whether its figures hold is for a replay to tell, or for the run's own baseline.
"""

import itertools
from collections.abc import Iterator, Sequence

from megatron_energy.pipeline.order import operations
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.plan import Expectation, Plan, Segment, TransitionRequest, UnitPlan

Point = tuple[str, int, int]
"""(kind, chunk, microbatch) of an operation, grad-sync or optimizer."""

EDGES = ("begin", "end")
WHOLE_STEPS: tuple[Point, ...] = (("grad-sync", -1, -1), ("optimizer", -1, -1))
LIMITED = "segments"
"""The policy that keeps to a number of switches."""
DEADLINELESS = "envpipe"
"""The policy that knows no deadline, so that the bound at the deadline does not hold for it."""

ROUNDING_PERCENT = 0.005
"""People round figures that they write into files."""

BOUND_PERCENT = 0.01
"""Tolerance of the linear program behind a bound."""

LONGEST_DELAY = 1.05
"""Of the iteration. Delays are taken from clocks planned for the slowest of like GPUs, which are up to half a percent slower."""


def check_sense(plan: Plan) -> None:
    """Refuse a plan that contradicts itself.

    Raises:
        ValueError: names the field and what is wrong there.
    """
    from megatron_energy.planning.policies import PLAIN_POLICIES, POLICIES  # which import the modules that make plans

    known = (*POLICIES, *PLAIN_POLICIES)
    if plan.policy not in known:
        raise ValueError(f"policy: '{plan.policy}' is not one of {', '.join(known)}")
    for name, least in (("max_switches", 0), ("lead_s", 0.0), ("slowdown", 0.0), ("straggler", 1.0), ("solve_s", 0.0)):
        if getattr(plan, name) < least:
            raise ValueError(f"{name}: {getattr(plan, name)} is below {least:g}")
    _check_expected(plan.expected, plan)
    for number, unit in enumerate(plan.units):
        _check_unit(plan, unit, f"units[{number}]")
    _check_requests(plan)


def _check_expected(e: Expectation, plan: Plan) -> None:
    for name in ("iteration_s", "energy_j", "baseline_iteration_s", "baseline_energy_j", "deadline_s"):
        if getattr(e, name) < 0:
            raise ValueError(f"expected.{name}: {getattr(e, name)} is below 0")
    due_s = e.baseline_iteration_s * plan.straggler
    end_s = max(e.iteration_s, due_s) if plan.straggler > 1 else e.iteration_s
    saved = 100 * (1 - e.energy_j / e.baseline_energy_j) if e.baseline_energy_j else 0.0
    slowdown = 100 * (end_s / due_s - 1) if due_s else 0.0
    for name, told, found in (("saved_percent", e.saved_percent, saved), ("slowdown_percent", e.slowdown_percent, slowdown)):
        if abs(told - found) > ROUNDING_PERCENT:
            raise ValueError(f"expected.{name}: {told:g}, but the figures beside it make {found:g}")
    if e.deadline_s > due_s * (1 + plan.slowdown) * (1 + ROUNDING_PERCENT / 100):
        raise ValueError(f"expected.deadline_s: {e.deadline_s:g} is later than straggler x (1 + slowdown) x baseline")
    for name in ("bound_saved_percent", "limit_saved_percent"):
        most = getattr(e, name)
        if most is not None and e.saved_percent > most + BOUND_PERCENT and plan.policy != DEADLINELESS:
            raise ValueError(f"expected.{name}: {most:g}, but the plan saves {e.saved_percent:g}")


def _check_unit(plan: Plan, unit: UnitPlan, place: str) -> None:
    if plan.policy == LIMITED and unit.switches > max(plan.max_switches, 0):
        raise ValueError(f"{place}.segments: {unit.switches} switches, but max_switches is {plan.max_switches}")
    for number, segment in enumerate(unit.segments):
        _check_point(plan.schedule, segment, f"{place}.segments[{number}]")
    longest_s = LONGEST_DELAY * plan.expected.iteration_s
    for number, request in enumerate(unit.requests):
        here = f"{place}.requests[{number}]"
        _check_point(plan.schedule, request, here)
        if request.edge not in EDGES:
            raise ValueError(f"{here}.edge: '{request.edge}' is not one of {', '.join(EDGES)}")
        if not 0 <= request.delay_s <= longest_s:
            raise ValueError(f"{here}.delay_s: {request.delay_s:g} is not within an iteration of {plan.expected.iteration_s:g} s")
        if request.raise_in_s is not None and not 0 <= request.raise_in_s <= longest_s:
            raise ValueError(f"{here}.raise_in_s: {request.raise_in_s:g} is not within an iteration of {plan.expected.iteration_s:g} s")


def _check_point(schedule: Schedule, at: Segment | TransitionRequest, place: str) -> None:
    if at.kind in ("forward", "backward"):
        there = 0 <= at.chunk < schedule.chunks and 0 <= at.microbatch < schedule.microbatches
    else:
        there = _point(at) in WHOLE_STEPS
    if not there:
        raise ValueError(f"{place}: its schedule has no {at.kind} {at.microbatch} of chunk {at.chunk}")


def _point(at: Segment | TransitionRequest) -> Point:
    return at.kind, at.chunk, at.microbatch


def _check_requests(plan: Plan) -> None:
    """Requests name the operation that needs their clock by how many operations ahead it is: they have to be those of the segments.

    A unit without any request is let pass: its segments can be evaluated, though not run.
    """
    wrong = ""
    for steps in _step_variants():
        wrong = next(_unmet(plan, steps), "")
        if not wrong:
            return
    raise ValueError(wrong)


def _step_variants() -> Iterator[tuple[Point, ...]]:
    """What may follow the operations: a profile without a grad-sync, or without an optimizer, makes plans that do not count it."""
    yield from (WHOLE_STEPS, WHOLE_STEPS[1:], WHOLE_STEPS[:1], ())


def _unmet(plan: Plan, steps: Sequence[Point]) -> Iterator[str]:
    """What is wrong with the requests, if an iteration ends with these steps."""
    order_of_stage: dict[int, list[Point]] = {}
    for number, unit in enumerate(plan.units):
        if unit.stage not in order_of_stage:
            order_of_stage[unit.stage] = [*((o.kind, o.chunk, o.microbatch) for o in operations(plan.schedule, unit.stage)), *steps]
        order = order_of_stage[unit.stage]
        if not _in_order(unit, order):
            yield f"units[{number}].segments: not in the order in which their operations run"
        if not unit.requests:
            continue
        if sorted(_asked(unit, order)) != sorted(_changes(unit)):
            yield f"units[{number}].requests: they do not bring the segments about"


def _in_order(unit: UnitPlan, order: Sequence[Point]) -> bool:
    place = {point: index for index, point in enumerate(order)}
    begins = [place.get(_point(segment), -1) for segment in unit.segments]
    return begins[0] >= 0 and all(a < b for a, b in itertools.pairwise(begins))


def _changes(unit: UnitPlan) -> list[tuple[Point, int]]:
    """(operation, clock in MHz) of every segment that changes the clock."""
    before = [unit.segments[-1], *unit.segments[:-1]]
    return [(_point(s), s.clock_mhz) for b, s in zip(before, unit.segments, strict=True) if s.clock_mhz != b.clock_mhz]


def _asked(unit: UnitPlan, order: Sequence[Point]) -> list[tuple[Point, int]]:
    """(operation that needs it, clock in MHz) of every request."""
    place = {point: index for index, point in enumerate(order)}
    found = []
    for r in unit.requests:
        anchor = place.get(_point(r))
        if anchor is not None:
            found.append((order[(anchor + (r.edge == "end") + r.ahead) % len(order)], r.clock_mhz))
    return found
