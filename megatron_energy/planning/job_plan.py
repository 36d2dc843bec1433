"""The plan of a whole job whose GPUs may differ: every kind of GPU of every class of replicas has its own clocks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.assemble import Purpose, expectation_of, with_early_raises
from megatron_energy.planning.bound import bound
from megatron_energy.planning.early import early_raises_j
from megatron_energy.planning.job_problem import JobProblem
from megatron_energy.planning.plan import Expectation, Plan, UnitPlan
from megatron_energy.planning.policies import Solution, solve
from megatron_energy.planning.rank_ranges import ranges_of
from megatron_energy.planning.requests import Timing, enforce_lead, unit_plans
from megatron_energy.planning.sequences import clocked_vertices

POLICIES = ("segments", "operations", "roles", "stages", "maximum")
"""Policies that can give unlike GPUs unlike clocks; the others are made to compare with on jobs of like GPUs."""


def plan_job(
    job: JobProblem,
    purpose: Purpose,
    *,
    effort: str = "default",
    seed: int = 0,
    starts: Sequence[Plan] = (),
) -> Plan:
    """Choose the clocks of every GPU of a job.

    Args:
        job: the job's problem.
        purpose: what the plan is for; its policy, switches and lead decide how it is searched.
        effort: ``default`` (seconds) or ``high`` (minutes).
        seed: of the search.
        starts: plans that ``segments`` may be no worse than, with one list of clocks per stage, such as one that ignores that GPUs differ.
            Those that are late or switch more often are ignored.

    Raises:
        UserError: a policy that cannot give unlike GPUs unlike clocks, or a start that does not fit.
        ValueError: a start that tells the GPUs of a stage apart.
    """
    if purpose.policy not in POLICIES:
        raise UserError(f"policy {purpose.policy} knows no unlike GPUs: choose one of {', '.join(POLICIES)}")
    if any(start.by_rank for start in starts):
        raise ValueError("a start tells the GPUs of a stage apart: give one with one list of clocks per stage")
    begin_s = time.perf_counter()
    search = _Search(purpose, effort, seed)
    one_by_one = job.alone and purpose.policy == "segments"
    solution = _class_by_class(job, search, starts) if one_by_one else search.solve(job, starts)
    return assemble_job(job, job.clocks(solution.clocks), purpose, solution, time.perf_counter() - begin_s)


@dataclass(frozen=True)
class _Search:
    """How plans are searched for."""

    purpose: Purpose
    effort: str
    seed: int

    def solve(self, job: JobProblem, starts: Sequence[Plan], known: Sequence[IntArray] = ()) -> Solution:
        """The policy's solution of one problem; ``known``: further starts, (n,) joint columns."""
        return solve(
            job.problem,
            self.purpose.policy,
            max_switches=self.purpose.max_switches,
            effort=self.effort,
            lead_s=self.purpose.lead_s,
            seed=self.seed,
            starts=[*(job.joint(job.planned_clocks(start)[0]) for start in starts), *known],
        )


def _class_by_class(job: JobProblem, search: _Search, starts: Sequence[Plan]) -> Solution:
    """Search the clocks of every class of replicas for itself, with the whole job's end as the deadline.

    That is as good as searching for all together where no step at which replicas meet takes longer at the clocks chosen. Where the
    plans are late together, or where a slowdown is allowed and the classes may disagree on the end, all are searched together, too.
    """
    found = [search.solve(one, starts) for one in job.alone]
    clocks = job.together([one.clocks for one in found])
    if job.problem.slowdown > 0 or not job.problem.meets_deadline(job.problem.iteration_s(clocks)):
        return search.solve(job, starts, [clocks])
    return Solution(clocks, bound(job.problem), _sum([one.limit_energy_j for one in found]), all(one.complete for one in found))


def _sum(limits_j: Sequence[float | None]) -> float | None:
    """The classes' limits together, if all were proven: every plan of the job is one plan of each class, and all GPUs end together."""
    known = [limit_j for limit_j in limits_j if limit_j is not None]
    return sum(known) if len(known) == len(limits_j) else None


def assemble_job(job: JobProblem, clocks: IntArray, purpose: Purpose, solution: Solution | None = None, solve_s: float = 0.0) -> Plan:
    """The plan of (S, n) clock columns, one row for every kind of GPU: segments, requests and replayed figures.

    Args:
        job: the job's problem.
        clocks: as :meth:`~megatron_energy.planning.job_problem.JobProblem.clocks` gives them.
        purpose: what the plan is for.
        solution: for the bounds; where classes that differ were joined, they do not hold for the job as it is, and are left out.
        solve_s: time the planner took.
    """
    graph = job.problem.graph
    slots = [job.of_slot(slot) for slot in range(job.slots)]
    first = replay(graph, job.durations(clocks))
    kept = [enforce_lead(slots[s], row, first.start_s, first.makespan_s, purpose.lead_s) for s, row in enumerate(clocks)]
    clocks = np.stack(kept)
    done = replay(graph, job.durations(clocks))
    timing = Timing(done.start_s, done.end_s, done.makespan_s)
    units = [unit_plans(problem, row, timing, purpose.lead_s) for problem, row in zip(slots, clocks, strict=True)]
    plan = Plan(
        layout=dict(purpose.layout),
        schedule=purpose.schedule,
        policy=purpose.policy,
        max_switches=purpose.max_switches,
        lead_s=purpose.lead_s,
        expected=job_expectation(job, clocks, purpose.lead_s, solution),
        units=_classes(job, units),
        fingerprint=purpose.fingerprint,
        solve_s=solve_s,
        slowdown=job.problem.slowdown,
        straggler=job.problem.straggler,
        provenance=dict(purpose.provenance or {}),
    )
    if job.exact is None:
        return plan
    return replace(plan, expected=job_expectation(job.exact, job.exact.planned_clocks(plan), purpose.lead_s))


def job_expectation(job: JobProblem, clocks: IntArray, lead_s: float, solution: Solution | None = None) -> Expectation:
    """Replayed figures of (S, n) clock columns; the energy counts that raises come early by ``lead_s``.

    Bounds hold for the problem that was solved, and for no other: they are known with a ``solution`` only.
    """
    done = replay(job.problem.graph, job.durations(clocks))
    early_j = 0.0
    for slot, row in enumerate(clocks):
        problem = job.of_slot(slot)
        for unit, one_j in enumerate(early_raises_j(problem, clocked_vertices(problem), row, done, lead_s).tolist()):
            early_j += one_j * len(job.ranks(unit, slot)) if slot < len(job.members[unit].gpus) else 0.0
    found = with_early_raises(job.problem, job.evaluate(clocks), early_j)
    if solution is None:
        return expectation_of(job.problem, found)
    return expectation_of(job.problem, found, solution.bound.energy_j, solution.limit_energy_j)


def _classes(job: JobProblem, by_slot: Sequence[Sequence[UnitPlan]]) -> tuple[UnitPlan, ...]:
    """Every list of clocks once, with the ranks that follow it; without ranks where all GPUs of every stage are alike."""
    ranks: dict[UnitPlan, list[int]] = {}
    for unit, members in enumerate(job.members):
        for slot in range(len(members.gpus)):
            ranks.setdefault(by_slot[slot][unit], []).extend(job.ranks(unit, slot))
    ordered = sorted(ranks, key=lambda plan: (plan.stage, min(ranks[plan])))
    if len({plan.stage for plan in ordered}) == len(ordered):
        return tuple(ordered)
    return tuple(UnitPlan(plan.stage, plan.segments, plan.requests, ranges_of(ranks[plan])) for plan in ordered)
