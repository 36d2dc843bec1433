"""Policies: ways to choose clocks. One function solves for any of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import Bound, bound
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.segments import EFFORTS, few_switches

Policy: TypeAlias = Literal["segments", "operations", "stages", "uniform", "maximum"]
"""``segments``: few switches per GPU. ``operations``: a clock per operation, for reference. ``stages``: one clock per stage.
``uniform``: one clock for all. ``maximum``: the GPUs as found."""

POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True)
class Solution:
    """Chosen clocks.

    Attributes:
        clocks: (n,) clock columns.
        bound: the least energy that any plan can use.
        limit_energy_j: least energy of any plan with so few switches, one GPU per unit, where it was proven.
        complete: the search had the time for all its rounds, so that it would find the same plan again.
    """

    clocks: IntArray
    bound: Bound
    limit_energy_j: float | None = None
    complete: bool = True


def solve(
    problem: Problem,
    policy: str,
    *,
    max_switches: int = 8,
    effort: str = "default",
    lead_s: float = 0.0,
    seed: int = 0,
    starts: Sequence[IntArray] = (),
) -> Solution:
    """Choose the clock of every vertex; the plan keeps the deadline exactly.

    Args:
        problem: what is to be planned.
        policy: one of :data:`POLICIES`.
        max_switches: of ``segments``: most changes per GPU and iteration, counted cyclically (so 1 equals 0).
        effort: of ``segments``: ``default`` (seconds) or ``high`` (minutes; also proves how much so few switches can save).
        lead_s: how early raises will be requested: ``segments`` counts what that costs.
        seed: of the search.
        starts: (n,) clock columns of plans that ``segments`` may be no worse than, such as one for fewer switches.

    Raises:
        UserError: unknown policy or effort.
    """
    if policy not in POLICIES:
        raise UserError(f"unknown policy '{policy}': choose one of {', '.join(POLICIES)}")
    if effort not in EFFORTS:
        raise UserError(f"unknown effort '{effort}': choose one of {', '.join(EFFORTS)}")
    found = bound(problem)
    if policy == "maximum":
        return Solution(problem.baseline_clocks, found)
    if policy == "uniform":
        return Solution(_uniform(problem), found)
    if policy == "operations":
        return Solution(per_operation(problem, found), found)
    switches = 0 if policy == "stages" else max_switches
    known = [_uniform(problem), *starts]
    search = few_switches(problem, found, switches, EFFORTS[effort], lead_s=lead_s, seed=seed, starts=known)
    return Solution(search.clocks, found, search.limit_energy_j, search.complete)


def _uniform(problem: Problem) -> IntArray:
    """The one clock for all that uses the least energy in time; the baseline's clock is always in time."""
    length_s = makespans(problem.graph, problem.tables.time_s)
    energy_j = problem.cost_j.sum(axis=0) + problem.horizon_power_w * np.maximum(length_s, problem.earliest_horizon_s)
    in_time = length_s <= problem.deadline_s * (1 + TIME_TOLERANCE)
    column = int(np.where(in_time, energy_j, np.inf).argmin())
    return np.full(len(problem.graph.vertices), column, dtype=np.int64)
