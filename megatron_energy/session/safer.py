"""A more careful version of a plan that costs more time than it promised."""

import dataclasses

import numpy as np

from megatron_energy.planning.assemble import Purpose, assemble
from megatron_energy.planning.plan import Plan
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.requests import clock_columns


def safer_plan(problem: Problem, plan: Plan) -> Plan | None:
    """The plan with every clock raised half-way to the maximum; None where all clocks are there already.

    The times of operations fall with their clocks, whatever part of the profile was wrong about them, and a raise that comes late costs
    less. A new search with a tighter deadline would trust the same profile again.

    Args:
        problem: the one that the plan was made for, a unit per stage.
        plan: with clocks of that problem.
    """
    clock_mhz = problem.tables.clock_mhz
    raised = np.array([_half_way(clock_mhz, int(mhz)) for mhz in clock_mhz], dtype=np.int64)
    columns = raised[clock_columns(problem.graph, clock_mhz, plan.units)]
    purpose = Purpose(plan.layout, plan.schedule, plan.policy, plan.max_switches, plan.lead_s, plan.fingerprint, plan.provenance)
    safer = assemble(problem, columns, purpose)
    if safer.clocks_mhz == plan.clocks_mhz:
        return None
    bound = plan.expected.bound_saved_percent
    return dataclasses.replace(safer, expected=dataclasses.replace(safer.expected, bound_saved_percent=bound))


def _half_way(clock_mhz: np.ndarray[tuple[int, ...], np.dtype[np.int64]], mhz: int) -> int:
    """Column of the lowest clock at least half-way between ``mhz`` and the highest one."""
    enough = np.flatnonzero(2 * clock_mhz >= mhz + clock_mhz.max())
    return int(enough[np.argmin(clock_mhz[enough])])
