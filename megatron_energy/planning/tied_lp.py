"""The linear program of tied clocks: the bound's, with one mix of clocks per group instead of one per vertex.

Variables are the start of every vertex, the horizon, the duration of every kind (vertices of one group with the same times), and the
share w of every group's work at each clock. A kind's duration is the sum of w x its time at each clock. One clock per group is a
feasible point, so no tied choice uses less than the optimum.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.lp import LinearProgram, Units, solve
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.ties import Ties


@dataclass(frozen=True)
class TiedBound:
    """The optimum.

    Attributes:
        energy_j: least energy of any tied choice, one GPU per unit.
        shares: (G, F) share of each group's work at each clock.
    """

    energy_j: float
    shares: FloatArray


@dataclass(frozen=True)
class _Kinds:
    """K kinds: vertices of one group that take the same time at every clock."""

    of_vertex: IntArray  # (n,) kind, -1 without a group
    group: IntArray  # (K,)
    time_s: FloatArray  # (K, F)


@dataclass(frozen=True)
class TiedProgram:
    """The program before it is solved. Columns: starts (n), horizon, durations of kinds (K), shares (G x F).

    Attributes:
        program, units: for the solver.
        first_share: column of the first share.
        groups: G.
        kinds: vertices with the same times.
    """

    program: LinearProgram
    units: Units
    first_share: int
    groups: int
    kinds: _Kinds

    def shares(self, x: FloatArray) -> FloatArray:
        """(G, F) share of each group's work at each clock, of a solution; columns after those of this program are ignored."""
        clocks = self.kinds.time_s.shape[1]
        return np.asarray(x[self.first_share :][: self.groups * clocks].reshape(self.groups, clocks), dtype=np.float64)

    def point(self, problem: Problem, ties: Ties, columns: IntArray) -> FloatArray:
        """The solution that (G,) clock columns in time are."""
        done = replay(problem.graph, problem.durations(ties.clocks(columns)))
        kind_s = self.kinds.time_s[np.arange(len(self.kinds.group)), columns[self.kinds.group]]
        share = np.zeros((ties.count, self.kinds.time_s.shape[1]))
        share[np.arange(ties.count), columns] = 1.0
        horizon_s = max(done.makespan_s, problem.earliest_horizon_s)
        return np.concatenate([done.start_s, [horizon_s], kind_s, share.ravel()])


def tied_bound(problem: Problem, ties: Ties) -> TiedBound:
    """Solve the linear program of tied clocks.

    Raises:
        SolverError: no clocks keep the deadline.
    """
    tied = tied_program(problem, ties)
    optimum = solve(tied.program, tied.units)
    free_j = float(problem.cost_j[ties.group < 0, ties.free[ties.group < 0]].sum())
    return TiedBound(optimum.objective + free_j, tied.shares(optimum.x))


def _group_cost_j(problem: Problem, ties: Ties) -> FloatArray:
    """(G, F) effective energy of each group at each clock."""
    cost_j = np.zeros((ties.count, problem.tables.time_s.shape[1]))
    np.add.at(cost_j, ties.group[ties.group >= 0], problem.cost_j[ties.group >= 0])
    return cost_j


def _kinds(problem: Problem, ties: Ties) -> _Kinds:
    index: dict[tuple[int, bytes], int] = {}
    of_vertex = [
        index.setdefault((group, problem.tables.time_s[v].tobytes()), len(index)) if group >= 0 else -1
        for v, group in enumerate(ties.group.tolist())
    ]
    time_s = np.array([np.frombuffer(times) for _, times in index]).reshape(len(index), problem.tables.time_s.shape[1])
    return _Kinds(np.array(of_vertex, dtype=np.int64), np.array([group for group, _ in index], dtype=np.int64), time_s)


def tied_program(problem: Problem, ties: Ties) -> TiedProgram:
    """Write the program down. Rows: edges, sinks, durations, sums of shares."""
    kinds, unit_s = _kinds(problem, ties), problem.longest_operation_s
    edges, sinks, n = problem.graph.edges, problem.paths.sinks, len(problem.graph.vertices)
    clocks, count = problem.tables.time_s.shape[1], len(kinds.group)
    leaving = np.concatenate([edges[:, 0], sinks])
    first_share, rows = n + 1 + count, len(leaving)
    fixed_s = np.where(kinds.of_vertex < 0, problem.durations(ties.free), 0.0)
    lag_s = np.concatenate([problem.graph.lag_s, np.zeros(len(sinks))])
    arriving = np.concatenate([edges[:, 1], np.full(len(sinks), n)])
    kind = kinds.of_vertex[leaving]
    timed = np.flatnonzero(kind >= 0)
    share = first_share + kinds.group[:, np.newaxis] * clocks + np.arange(clocks)
    entries = [
        (np.arange(rows), arriving, np.ones(rows)),
        (np.arange(rows), leaving, -np.ones(rows)),
        (timed, n + 1 + kind[timed], -np.ones(len(timed))),
        (rows + np.arange(count), n + 1 + np.arange(count), np.ones(count)),
        (rows + np.repeat(np.arange(count), clocks), share.ravel(), -kinds.time_s.ravel()),
        (
            rows + count + np.repeat(np.arange(ties.count), clocks),
            first_share + np.arange(ties.count * clocks),
            np.ones(ties.count * clocks),
        ),
    ]
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    latest = problem.deadline_s * (1 + TIME_TOLERANCE)
    exact = np.concatenate([np.zeros(count), np.ones(ties.count)])
    program = LinearProgram(
        cost=np.concatenate([np.zeros(n), [problem.horizon_power_w], np.zeros(count), _group_cost_j(problem, ties).ravel()]),
        lower=np.concatenate([np.zeros(n), [problem.earliest_horizon_s], np.zeros(count + ties.count * clocks)]),
        upper=np.concatenate([np.full(n + 1, latest), np.full(count + ties.count * clocks, np.inf)]),
        matrix=coo_matrix((value, (row, column)), shape=(rows + count + ties.count, first_share + ties.count * clocks)),
        row_lower=np.concatenate([fixed_s[leaving] + lag_s, exact]),
        row_upper=np.concatenate([np.full(rows, np.inf), exact]),
    )
    units = Units(
        np.concatenate([np.full(first_share, unit_s), np.ones(ties.count * clocks)]),
        np.concatenate([np.full(rows + count, unit_s), np.ones(ties.count)]),
        problem.costliest_operation_j,
    )
    return TiedProgram(program, units, first_share, ties.count, kinds)
