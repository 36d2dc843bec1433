"""What time a plan leaves: to one vertex, and to two neighbours that exchange some of it."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.problem import Problem

STEPS = tuple((a, -b) for a, b in product((1, 2, 3, 4), repeat=2)) + tuple((-a, b) for a, b in product((1, 2, 3, 4), repeat=2))
"""Columns by which two neighbours change: one gets slower, the other faster."""


def spare_s(problem: Problem, clocks: IntArray) -> FloatArray:
    """(n,) seconds by which each vertex alone may take longer until the deadline."""
    duration_s = problem.durations(clocks)
    return latest_ends_s(problem, duration_s) - replay(problem.graph, duration_s).start_s - duration_s


def latest_ends_s(problem: Problem, duration_s: FloatArray) -> FloatArray:
    """(n,) when each vertex has to end so that those after it, (n,) long, keep the deadline."""
    count, latest_end_s = len(duration_s), np.full(len(duration_s), problem.deadline_s)
    for level in reversed(problem.graph.levels.levels):  # every edge leads to a later level: what follows is already final
        bound_s = np.broadcast_to(latest_end_s[level.vertices] - duration_s[level.vertices], level.before.shape)
        if level.lag_s is not None:
            bound_s = bound_s - level.lag_s[:, :, 0]
        real = level.before < count
        np.minimum.at(latest_end_s, level.before[real], bound_s[real])
    return latest_end_s


@dataclass(frozen=True)
class Exchange:
    """The best exchange of each of m edges.

    Attributes:
        vertices: (m, 2) the edges' ends.
        columns: (m, 2) their new clock columns.
        gain_j: (m,) change of the effective energy; 0 where no exchange saves anything.
    """

    vertices: IntArray
    columns: IntArray
    gain_j: FloatArray


def exchanges(problem: Problem, clocks: IntArray, chosen: npt.NDArray[np.bool_]) -> Exchange:
    """For every edge, the exchange between its two ends that saves the most while each of both alone would keep the deadline.

    Args:
        problem: its deadline is to be kept.
        clocks: (n,) clock columns that keep it.
        chosen: (n,) which vertices have a clock to choose.
    """
    time_s, cost_j, edges, lag_s = problem.tables.time_s, problem.cost_j, problem.graph.edges, problem.graph.lag_s
    count, first, second = time_s.shape[1], edges[:, 0], edges[:, 1]
    duration_s = problem.durations(clocks)
    result = replay(problem.graph, duration_s)
    latest_end_s = result.end_s + spare_s(problem, clocks)
    # What the other followers of the first one allow, and what the second one waits for besides the first.
    limit_s = _least_of_others(first, latest_end_s[second] - duration_s[second] - lag_s, problem.deadline_s)
    ready_s = -_least_of_others(second, -(result.end_s[first] + lag_s), 0.0)
    best = Exchange(edges, clocks[edges], np.zeros(len(edges)))
    for step in STEPS:
        columns = clocks[edges] + step
        valid = ((columns >= 0) & (columns < count)).all(axis=1) & chosen[edges].all(axis=1)
        columns = np.clip(columns, 0, count - 1)
        first_end_s = result.start_s[first] + time_s[first, columns[:, 0]]
        second_end_s = np.maximum(first_end_s + lag_s, ready_s) + time_s[second, columns[:, 1]]
        gain_j = (cost_j[edges, columns] - cost_j[edges, clocks[edges]]).sum(axis=1)
        better = valid & (first_end_s <= limit_s) & (second_end_s <= latest_end_s[second]) & (gain_j < best.gain_j)
        best.columns[better], best.gain_j[better] = columns[better], gain_j[better]
    return best


def _least_of_others(owner: IntArray, value: FloatArray, otherwise: float) -> FloatArray:
    """(m,) for every row the least value among the other rows of its owner; ``otherwise`` if that is less or there is none."""
    order = np.lexsort((value, owner))
    begins = np.flatnonzero(np.r_[True, np.diff(owner[order]) != 0]) if len(owner) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[begins, len(owner)])
    least = np.repeat(value[order[begins]], sizes)
    runner_up = np.where(sizes > 1, value[order[np.minimum(begins + 1, len(owner) - 1)]], np.inf)
    least[begins] = runner_up
    others = np.empty(len(owner))
    others[order] = least
    return np.minimum(others, otherwise)
