"""What raises cost for coming early.

A raise is requested the lead before the operation that needs it, so that it is in force in time; what runs in between runs at the higher
clock. The part of an operation that falls into the lead costs the difference of its effective energies at the two clocks. Waiting costs
nothing more: blocking power hardly depends on the clock.
"""

from collections.abc import Sequence

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import Replay
from megatron_energy.planning.problem import Problem


def lead_cost_j(done: Replay, member: IntArray, cost_j: FloatArray, lead_s: float) -> FloatArray:
    """(N, F) per operation of a unit: effective J, at each clock, of what runs within the lead before its start.

    Args:
        done: of one iteration; the one before it is alike.
        member: (N,) the unit's operations.
        cost_j: (N, F) their effective energies.
        lead_s: how early raises are requested.
    """
    start_s, end_s = done.start_s[member], done.end_s[member]
    begins, ends = np.concatenate([start_s - done.makespan_s, start_s]), np.concatenate([end_s - done.makespan_s, end_s])
    window_end = start_s[:, np.newaxis]
    inside = np.minimum(ends, window_end) - np.maximum(begins, window_end - lead_s)
    share = np.clip(inside / np.maximum(ends - begins, 1e-12), 0.0, 1.0)
    return np.asarray(share @ np.concatenate([cost_j, cost_j]), dtype=np.float64)


def early_raises_j(problem: Problem, members: Sequence[IntArray], clocks: IntArray, done: Replay, lead_s: float) -> FloatArray:
    """(units,) J that the raises of one GPU of each unit cost for coming early, in one iteration.

    Args:
        problem: for the energies.
        members: per unit, its vertices with a clock to choose.
        clocks: (n,) clock columns.
        done: the plan's replay.
        lead_s: how early raises are requested.
    """
    found = np.zeros(len(members))
    for unit, member in enumerate(members):
        sequence = clocks[member]
        before = np.roll(sequence, 1)
        raised = np.flatnonzero(sequence < before)
        if lead_s > 0 and len(raised):
            early_j = lead_cost_j(done, member, problem.cost_j[member], lead_s)
            found[unit] = np.maximum(early_j[raised, sequence[raised]] - early_j[raised, before[raised]], 0.0).sum()
    return found
