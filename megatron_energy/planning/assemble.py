"""From a problem and the clocks that a policy chose to a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.early import early_raises_j
from megatron_energy.planning.plan import Expectation, Plan
from megatron_energy.planning.problem import Evaluation, Problem
from megatron_energy.planning.requests import Timing, enforce_lead, unit_plans
from megatron_energy.planning.sequences import clocked_vertices


@dataclass(frozen=True)
class Purpose:
    """What a plan is for.

    Attributes:
        layout: parallel sizes by name (tensor, context, expert, data, pipeline).
        schedule: pipeline schedule with its communication mode.
        policy, max_switches: how the clocks were chosen.
        lead_s: how early raises are requested.
        fingerprint: of the model; empty: any.
        provenance: of the profile.
    """

    layout: Mapping[str, int]
    schedule: Schedule
    policy: str
    max_switches: int
    lead_s: float = 0.0
    fingerprint: str = ""
    provenance: Mapping[str, str | float | bool] | None = None


def assemble(
    problem: Problem,
    clocks: IntArray,
    purpose: Purpose,
    *,
    bound_energy_j: float | None = None,
    limit_energy_j: float | None = None,
    solve_s: float = 0.0,
) -> Plan:
    """The plan of (n,) clock columns: segments, requests and replayed figures.

    Args:
        problem: what was solved.
        clocks: per vertex.
        purpose: what the plan is for.
        bound_energy_j: least energy of any plan, one GPU per unit; None: not known.
        limit_energy_j: least energy of any plan with so few switches, likewise.
        solve_s: time the planner took.
    """
    first = replay(problem.graph, problem.durations(clocks))
    clocks = enforce_lead(problem, clocks, first.start_s, first.makespan_s, purpose.lead_s)
    done = replay(problem.graph, problem.durations(clocks))
    timing = Timing(done.start_s, done.end_s, done.makespan_s)
    return Plan(
        layout=dict(purpose.layout),
        schedule=purpose.schedule,
        policy=purpose.policy,
        max_switches=purpose.max_switches,
        lead_s=purpose.lead_s,
        expected=expectation(problem, clocks, bound_energy_j, limit_energy_j, lead_s=purpose.lead_s),
        units=tuple(unit_plans(problem, clocks, timing, purpose.lead_s)),
        fingerprint=purpose.fingerprint,
        solve_s=solve_s,
        slowdown=problem.slowdown,
        straggler=problem.straggler,
        provenance=dict(purpose.provenance or {}),
    )


def expectation(
    problem: Problem,
    clocks: IntArray,
    bound_energy_j: float | None = None,
    limit_energy_j: float | None = None,
    *,
    lead_s: float = 0.0,
) -> Expectation:
    """Replayed figures of (n,) clock columns; the energy counts that raises come early by ``lead_s``."""
    done = replay(problem.graph, problem.durations(clocks))
    early_j = early_raises_j(problem, clocked_vertices(problem), clocks, done, lead_s).sum()
    found = with_early_raises(problem, problem.evaluate(clocks), float(early_j) * problem.gpus_per_unit)
    return expectation_of(problem, found, bound_energy_j, limit_energy_j)


def with_early_raises(problem: Problem, found: Evaluation, early_j: float) -> Evaluation:
    """An evaluation with J more of all GPUs, for raises that come early."""
    energy_j = found.energy_j + early_j
    return replace(found, energy_j=energy_j, saved_percent=problem.saved_percent(energy_j / problem.gpus_per_unit))


def expectation_of(
    problem: Problem, found: Evaluation, bound_energy_j: float | None = None, limit_energy_j: float | None = None
) -> Expectation:
    """An evaluation beside the problem's baseline, deadline and bounds; the bounds count one GPU per unit."""
    return Expectation(
        iteration_s=found.iteration_s,
        energy_j=found.energy_j,
        baseline_iteration_s=problem.baseline_s,
        baseline_energy_j=problem.baseline_energy_j * problem.gpus_per_unit,
        deadline_s=problem.deadline_s,
        saved_percent=found.saved_percent,
        slowdown_percent=found.slowdown_percent,
        bound_saved_percent=None if bound_energy_j is None else problem.saved_percent(bound_energy_j),
        limit_saved_percent=None if limit_energy_j is None else problem.saved_percent(limit_energy_j),
    )
