"""The reference with a clock per operation: the bound rounded to real clocks, then improved while the deadline holds.

It takes hundreds of switches per iteration and cannot be executed on real GPUs; it shows what real clocks alone cost against the bound.
"""

import numpy as np
import numpy.typing as npt

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans, replay
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import clocked_vertices

ROUNDING_S = 1e-9  # durations of the linear program may miss a clock's time by this much
TRIALS = 64
ROUNDS = 2000


def per_operation(problem: Problem, found: Bound) -> IntArray:
    """(n,) clock columns, one per operation, that keep the deadline exactly."""
    chosen = np.zeros(len(problem.graph.vertices), dtype=bool)
    chosen[np.concatenate(clocked_vertices(problem))] = True
    clocks = _in_time(problem, np.where(chosen, _rounded(problem, found.duration_s), 0))
    for _ in range(ROUNDS):
        better = _improved(problem, clocks, chosen)
        if better is None:
            return clocks
        clocks = better
    return clocks


def _rounded(problem: Problem, limit_s: FloatArray) -> IntArray:
    """Per vertex the clock with the least effective energy that takes no longer than ``limit_s``."""
    time_s = problem.tables.time_s
    allowed = time_s <= limit_s[:, np.newaxis] + ROUNDING_S
    allowed[np.arange(len(time_s)), time_s.argmin(axis=1)] = True
    return np.asarray(np.where(allowed, problem.cost_j, np.inf).argmin(axis=1), dtype=np.int64)


def _in_time(problem: Problem, clocks: IntArray) -> IntArray:
    """Clocks raised along late paths until the deadline holds: needed only where rounding was the wrong way."""
    time_s, n = problem.tables.time_s, len(clocks)
    while not problem.meets_deadline(problem.iteration_s(clocks)):
        spare_s = _spare(problem, clocks)
        faster = np.where(time_s < problem.durations(clocks)[:, np.newaxis], time_s, -np.inf)
        column = faster.argmax(axis=1)
        late = (spare_s < 0) & np.isfinite(faster[np.arange(n), column])
        if not late.any():  # every late operation is at its fastest: the baseline keeps the deadline by definition
            return problem.baseline_clocks
        clocks = np.where(late, column, clocks)
    return clocks


def _spare(problem: Problem, clocks: IntArray) -> FloatArray:
    """(n,) seconds by which each vertex alone may take longer until the deadline."""
    graph, duration_s = problem.graph, problem.durations(clocks)
    start_s = replay(graph, duration_s).start_s
    latest_end_s = np.full(len(clocks), problem.deadline_s)
    for level in reversed(graph.levels.levels):  # every edge leads to a later level: what follows is already final
        bound_s = np.broadcast_to(latest_end_s[level.vertices] - duration_s[level.vertices], level.before.shape)
        if level.lag_s is not None:
            bound_s = bound_s - level.lag_s[:, :, 0]
        real = level.before < len(clocks)
        np.minimum.at(latest_end_s, level.before[real], bound_s[real])
    return np.asarray(latest_end_s - start_s - duration_s, dtype=np.float64)


def _improved(problem: Problem, clocks: IntArray, chosen: npt.NDArray[np.bool_]) -> IntArray | None:
    """As many of the best single changes together as keep the deadline; None if no change saves anything."""
    rows = np.arange(len(clocks))
    fits = problem.tables.time_s <= (problem.durations(clocks) + np.maximum(_spare(problem, clocks), 0.0))[:, np.newaxis]
    gain = np.where(fits & chosen[:, np.newaxis], problem.cost_j - problem.cost_j[rows, clocks][:, np.newaxis], 0.0)
    column = gain.argmin(axis=1)
    best = gain[rows, column]
    ranked = np.argsort(best, kind="stable")[:TRIALS]
    ranked = ranked[best[ranked] < -1e-9 * abs(problem.baseline_energy_j)]
    durations = np.repeat(problem.durations(clocks)[:, np.newaxis], len(ranked), axis=1)
    for position, vertex in enumerate(ranked):
        durations[vertex, position:] = problem.tables.time_s[vertex, column[vertex]]
    kept = np.flatnonzero(makespans(problem.graph, durations) <= problem.deadline_s) if len(ranked) else ranked
    if not len(kept):
        return None
    better: IntArray = clocks.copy()
    taken = ranked[: int(kept.max()) + 1]
    better[taken] = column[taken]
    return better
