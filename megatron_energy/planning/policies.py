"""Policies: ways to choose clocks. One function solves for any of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.bound import Bound, bound
from megatron_energy.planning.envpipe import envpipe
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.power_limit import power_limit
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.roles import roles
from megatron_energy.planning.segments import EFFORTS, few_switches
from megatron_energy.planning.stages import stages
from megatron_energy.planning.uniform import maximum, uniform

Policy: TypeAlias = Literal["segments", "operations", "roles", "stages", "uniform", "power-limit", "maximum"]
"""``segments``: few switches per GPU. ``operations``: a clock per operation, for reference. ``roles``: one clock per stage, direction and
role. ``stages``: one clock per stage. ``uniform``: one clock for all. ``power-limit``: one power cap for all. ``maximum``: the GPUs as
found."""

POLICIES: tuple[Policy, ...] = get_args(Policy)

PLAIN_POLICIES = ("envpipe",)
"""Policies that know plain 1F1B only; ``envpipe`` is the published algorithm, which knows no deadline either."""

EARLY = 1e-6
"""Part of the deadline by which a bound has to end before it to count as earlier: less is rounding."""

_FIXED: Mapping[str, Callable[[Problem], IntArray]] = {
    "roles": roles,
    "stages": stages,
    "uniform": uniform,
    "power-limit": power_limit,
    "maximum": maximum,
    "envpipe": envpipe,
}


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
    found: Bound | None = None,
) -> Solution:
    """Choose the clock of every vertex; the plan keeps the deadline exactly (but see :data:`PLAIN_POLICIES`).

    Args:
        problem: what is to be planned.
        policy: one of :data:`POLICIES` or :data:`PLAIN_POLICIES`.
        max_switches: of ``segments``: most changes per GPU and iteration, counted cyclically (so 1 equals 0).
        effort: of ``segments``: ``default`` (seconds) or ``high`` (minutes, never worse; also proves how much so few switches can save).
        lead_s: how early raises will be requested: ``segments`` counts what that costs.
        seed: of the search.
        starts: (n,) clock columns of plans that ``segments`` may be no worse than, such as one for fewer switches.
        found: the problem's bound, if it is at hand (:func:`megatron_energy.planning.scale.scaled_bound` is quicker in large jobs).

    Raises:
        UserError: unknown policy or effort, or a policy that does not know this schedule.
    """
    if policy not in (*POLICIES, *PLAIN_POLICIES):
        raise UserError(f"unknown policy '{policy}': choose one of {', '.join((*POLICIES, *PLAIN_POLICIES))}")
    if effort not in EFFORTS:
        raise UserError(f"unknown effort '{effort}': choose one of {', '.join(EFFORTS)}")
    found = found or bound(problem)
    if policy in _FIXED:
        return Solution(_FIXED[policy](problem), found)
    due = _worth_keeping(problem, found)
    if policy == "operations":
        return Solution(per_operation(due, found), found)
    known, complete = [uniform(problem), *starts], True
    if due is not problem:
        early = few_switches(due, found, max_switches, replace(EFFORTS[effort], proof_rounds=0), lead_s=lead_s, seed=seed)
        known, complete = [*known, early.clocks], early.complete
    if effort != "default":  # a longer search takes other ways, and is never to be worse
        short = few_switches(problem, found, max_switches, EFFORTS["default"], lead_s=lead_s, seed=seed, starts=known)
        known, complete = [*known, short.clocks], complete and short.complete
    search = few_switches(problem, found, max_switches, EFFORTS[effort], lead_s=lead_s, seed=seed, starts=known)
    return Solution(search.clocks, found, search.limit_energy_j, complete and search.complete)


def _worth_keeping(problem: Problem, found: Bound) -> Problem:
    """The problem due when its bound ends, where that is before the deadline: later than that, waiting costs more than slowness saves.

    Searches fill the time that they are given, so that a late deadline alone would make their plans worse.
    """
    end_s = found.iteration_s
    return replace(problem, given_deadline_s=end_s) if end_s < problem.deadline_s * (1 - EARLY) else problem
