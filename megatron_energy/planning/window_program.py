"""The clocks of a part of the iteration chosen together, the rest as it is: a mixed-integer program.

Where many paths are critical at once, clocks that fit each other cannot be found one by one. A window of some dozens of operations is small
enough for branch and bound: the operations before it end when they end, those after it begin no later than the deadline allows, and in
between every operation has its start and its clock to choose. The clocks as they are are one of the program's feasible points, so that a
search cut short does no harm.
"""

import numpy as np
from scipy.sparse import coo_matrix, hstack, identity, vstack

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.lp import LinearProgram, Units, solve_integer
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.slack import latest_ends_s


def best_in_window(
    problem: Problem, clocks: IntArray, window: IntArray, columns: IntArray, *, nodes: int, time_limit_s: float
) -> IntArray | None:
    """Choose the clocks of some vertices anew.

    Args:
        problem: its deadline is to be kept.
        clocks: (n,) clock columns that keep it.
        window: (k,) vertices, with every vertex that is between two of them.
        columns: (k, c) clock columns to choose from, besides the present ones.
        nodes: of branch and bound, at most; the same number finds the same clocks.
        time_limit_s: CPU seconds, a safety net.

    Returns:
        (n,) clock columns that keep the deadline; None where none were found that use less.
    """
    allowed = np.zeros((len(window), problem.tables.time_s.shape[1]), dtype=bool)
    allowed[np.arange(len(window))[:, np.newaxis], columns] = True
    allowed[np.arange(len(window)), clocks[window]] = True
    owner, column = np.nonzero(allowed)
    program, start_s = _program(problem, clocks, window, owner, column)
    k, shares = len(window), len(owner)
    units = Units(
        np.r_[np.full(k, problem.longest_operation_s), np.ones(shares)],
        np.r_[np.full(len(program.row_lower) - k, problem.longest_operation_s), np.ones(k)],
        problem.costliest_operation_j,
    )
    start = np.r_[start_s, (column == clocks[window][owner]).astype(np.float64)]
    found, _ = solve_integer(program, units, k + np.arange(shares), start, nodes=nodes, time_limit_s=time_limit_s)
    better = clocks.copy()
    used = found[k:] > 0.5
    better[window[owner[used]]] = column[used]
    gained = problem.effective_j(better) < problem.effective_j(clocks)
    return better if gained and problem.meets_deadline(problem.iteration_s(better)) else None


def _program(problem: Problem, clocks: IntArray, window: IntArray, owner: IntArray, column: IntArray) -> tuple[LinearProgram, FloatArray]:
    """(the program, (k,) present starts); variables: k starts, then the share of each vertex (``owner``) at each clock (``column``).

    Rows: start(b) - start(a) - duration(a) >= lag for edges inside; start(a) + duration(a) <= its latest end; shares add up to 1.
    """
    k, shares, edges, lag_s = len(window), len(owner), problem.graph.edges, problem.graph.lag_s
    place = np.full(len(clocks), -1)
    place[window] = np.arange(k)
    begin, end = place[edges[:, 0]], place[edges[:, 1]]
    inside, arriving, leaving = (begin >= 0) & (end >= 0), (begin < 0) & (end >= 0), (begin >= 0) & (end < 0)
    duration_s = problem.durations(clocks)
    now, latest_end_s = replay(problem.graph, duration_s), latest_ends_s(problem, duration_s)
    earliest_s, latest_s = np.zeros(k), np.full(k, problem.deadline_s)
    np.maximum.at(earliest_s, end[arriving], now.end_s[edges[arriving, 0]] + lag_s[arriving])
    after = edges[leaving, 1]
    np.minimum.at(latest_s, begin[leaving], latest_end_s[after] - duration_s[after] - lag_s[leaving])

    time_s = problem.tables.time_s[window[owner], column]
    lasting = coo_matrix((time_s, (owner, np.arange(shares))), shape=(k, shares)).tocsr()
    count = int(inside.sum())
    first, second = (coo_matrix((np.ones(count), (np.arange(count), v[inside])), shape=(count, k)).tocsr() for v in (begin, end))
    one_each = coo_matrix((np.ones(shares), (owner, np.arange(shares))), shape=(k, shares))
    matrix = vstack([hstack([second - first, -(first @ lasting)]), hstack([identity(k), lasting]), hstack([coo_matrix((k, k)), one_each])])
    program = LinearProgram(
        cost=np.r_[np.zeros(k), problem.cost_j[window[owner], column]],
        lower=np.r_[earliest_s, np.zeros(shares)],
        upper=np.r_[np.full(k, problem.deadline_s), np.ones(shares)],
        matrix=matrix,
        row_lower=np.r_[lag_s[inside], np.full(k, -np.inf), np.ones(k)],
        row_upper=np.r_[np.full(count, np.inf), latest_s, np.ones(k)],
    )
    return program, now.start_s[window]
