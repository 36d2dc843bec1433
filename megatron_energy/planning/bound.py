"""The bound: the least energy that any plan can use until the deadline, as an exact linear program.

Variables are the start of every vertex, the horizon H <= deadline, and how much of every segment of its lower convex hull of (time,
effective energy) each vertex uses: a mix of two neighbouring clocks of the hull. Constraints are the dependency edges; the objective
is the sum of effective energies + blocking power x units x H. A clock per vertex is one feasible point, so no plan uses less.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix, hstack

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.lp import BASIC, LOWER, Basis, LinearProgram, Solver, SolverError, Units
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.stretch import Stretch
from megatron_energy.profiles.curves import lower_hull


@dataclass(frozen=True)
class Bound:
    """The optimum of the linear program.

    Attributes:
        energy_j: least energy, one GPU per unit.
        iteration_s: the horizon it chose.
        duration_s: (n,) seconds of every vertex.
        weights: (n, F) share of each vertex's work at each clock; rows add up to 1.
        price_w: (n,) J that one second less of this vertex would save: its price of time.
        row_price_w: (m + k,) the same per edge, then per sink: the flow whose sum over a vertex's outgoing rows is its price.
        deadline_price_w: J that one second more until the deadline would save.
        gap_j: the prices prove that the optimum is no lower than energy_j - gap_j: rounding, where the solver was exact.
    """

    energy_j: float
    iteration_s: float
    duration_s: FloatArray
    weights: FloatArray
    price_w: FloatArray
    row_price_w: FloatArray
    deadline_price_w: float
    gap_j: float


@dataclass(frozen=True)
class _Hulls:
    """Hull segments of all vertices, s of them in all."""

    fastest: IntArray  # (n,) column of each vertex's fastest hull point
    vertex: IntArray  # (s,)
    fast: IntArray  # (s,) column where the segment begins
    slow: IntArray  # (s,) column where it ends


def bound(problem: Problem) -> Bound:
    """Solve the linear program of a problem.

    Raises:
        SolverError: no clocks keep the deadline (possible only if the baseline itself does not).
    """
    return BoundProgram(problem).at(problem.deadline_s, problem.earliest_horizon_s)


class BoundProgram:
    """The linear program of a problem at any deadline; every solution starts from the one before it, so neighbours take little time.

    Args:
        problem: its graph, tables and powers; its deadline does not matter.

    Attributes:
        iterations: steps of the simplex method that the last solution took.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.iterations = 0
        self._hulls = _hulls(problem)
        self._solver = Solver(_program(problem, self._hulls), _units(problem, len(self._hulls.vertex)))

    def start_like(self, short: "BoundProgram", like: Stretch) -> None:
        """Begin the next solution where that of a shorter iteration stands: in the steady state nothing is left to do."""
        n, basis = len(like.vertex), short._solver.basis
        first, short_first = (np.searchsorted(p._hulls.vertex, np.arange(len(p.problem.graph.vertices))) for p in (self, short))
        owner = self._hulls.vertex
        segment = short_first[like.vertex[owner]] + np.arange(len(owner)) - first[owner]
        same = (like.vertex[owner] >= 0) & (segment < len(short._hulls.vertex))
        column = np.full(n + 1 + len(owner), BASIC)
        column[:n] = np.where(like.vertex >= 0, basis.column[like.vertex], BASIC)
        column[n] = basis.column[len(short.problem.graph.vertices)]
        column[n + 1 :] = np.where(same, basis.column[len(short.problem.graph.vertices) + 1 + np.where(same, segment, 0)], LOWER)
        self._solver.start_from(Basis(column, np.where(like.row >= 0, basis.row[like.row], BASIC)))

    def at(self, deadline_s: float, earliest_horizon_s: float = 0.0) -> Bound:
        """The optimum.

        Args:
            deadline_s: when the iteration has to be over.
            earliest_horizon_s: energy is counted at least until then.

        Raises:
            SolverError: no clocks keep the deadline.
        """
        problem, hulls = self.problem, self._hulls
        n, latest_s = len(problem.graph.vertices), deadline_s * (1 + TIME_TOLERANCE)
        self._solver.set_bounds(n, min(earliest_horizon_s, latest_s), latest_s)
        optimum = self._solver.solve()
        self.iterations = optimum.iterations
        share = np.clip(optimum.x[n + 1 :], 0.0, 1.0)
        duration_s = problem.durations(hulls.fastest)
        np.add.at(duration_s, hulls.vertex, share * _lengths(problem.tables.time_s, hulls))
        flow = np.maximum(optimum.row_dual, 0.0)
        energy_j = optimum.objective + problem.effective_j(hulls.fastest)
        return Bound(
            energy_j=energy_j,
            iteration_s=float(optimum.x[n]),
            duration_s=duration_s,
            weights=_weights(problem, hulls, share),
            price_w=np.asarray(leaving_rows(problem).T @ flow, dtype=np.float64),
            row_price_w=flow,
            deadline_price_w=float(flow[len(problem.graph.edges) :].sum()) - problem.horizon_power_w,
            gap_j=max(0.0, energy_j - proven_j(problem, flow, deadline_s, earliest_horizon_s)),
        )


def proven_j(problem: Problem, row_price_w: FloatArray, deadline_s: float, earliest_horizon_s: float = 0.0) -> float:
    """Least energy of any plan in time, as far as these prices prove it; any prices >= 0 prove something (weak duality).

    Every vertex takes the clock that is cheapest at its price of time, out of all of them, and every start and the horizon the end of
    their range that is cheaper; that sum is below what any plan in time uses. The linear program has no part in it.

    Args:
        problem: its graph, tables and powers; its deadline does not matter.
        row_price_w: (m + k,) prices as in :class:`Bound`.
        deadline_s: when the iteration has to be over.
        earliest_horizon_s: energy is counted at least until then.
    """
    edges, latest_s = problem.graph.edges, deadline_s * (1 + TIME_TOLERANCE)
    leaving_w = leaving_rows(problem).T @ row_price_w
    arriving_w = np.bincount(edges[:, 1], weights=row_price_w[: len(edges)], minlength=len(leaving_w))
    vertices_j = (problem.cost_j + leaving_w[:, np.newaxis] * problem.tables.time_s).min(axis=1).sum()
    starts_j = np.minimum(leaving_w - arriving_w, 0.0).sum() * latest_s
    spare_w = problem.horizon_power_w - row_price_w[len(edges) :].sum()
    horizon_j = spare_w * (earliest_horizon_s if spare_w > 0 else latest_s)
    return float(vertices_j + starts_j + row_price_w[: len(edges)] @ problem.graph.lag_s + horizon_j)


def _hulls(problem: Problem) -> _Hulls:
    found: dict[bytes, IntArray] = {}  # vertices of one kind share their hull
    fastest, vertex, fast, slow = [], [], [], []
    for index, (time_s, cost_j) in enumerate(zip(problem.tables.time_s, problem.cost_j, strict=True)):
        key = time_s.tobytes() + cost_j.tobytes()
        hull = found[key] if key in found else found.setdefault(key, lower_hull(time_s, cost_j))
        fastest.append(int(hull[0]))
        vertex += [index] * (len(hull) - 1)
        fast += hull[:-1].tolist()
        slow += hull[1:].tolist()
    return _Hulls(*(np.array(part, dtype=np.int64) for part in (fastest, vertex, fast, slow)))


def leaving_rows(problem: Problem) -> Any:
    """(m + k, n) sparse: 1 where a row holds the end of a vertex: the m edges, then the horizon for each of k sinks."""
    rows = np.concatenate([problem.graph.edges[:, 0], problem.paths.sinks])
    return coo_matrix((np.ones(len(rows)), (np.arange(len(rows)), rows)), shape=(len(rows), len(problem.graph.vertices)))


def _program(problem: Problem, hulls: _Hulls) -> LinearProgram:
    """Rows: start(b) - start(a) - used segments(a) >= fastest(a) + lag for edges, H - start - used >= fastest for sinks."""
    edges, sinks, n = problem.graph.edges, problem.paths.sinks, len(problem.graph.vertices)
    m, k, s = len(edges), len(sinks), len(hulls.vertex)
    leaving = leaving_rows(problem)
    arriving = coo_matrix((np.ones(m), (np.arange(m), edges[:, 1])), shape=(m + k, n))
    horizon = coo_matrix((np.ones(k), (m + np.arange(k), np.zeros(k, dtype=np.int64))), shape=(m + k, 1))
    used = coo_matrix((_lengths(problem.tables.time_s, hulls), (hulls.vertex, np.arange(s))), shape=(n, s))
    fastest_s = problem.durations(hulls.fastest)
    return LinearProgram(
        cost=np.concatenate([np.zeros(n), [problem.horizon_power_w], _lengths(problem.cost_j, hulls)]),
        lower=np.zeros(n + 1 + s),
        upper=np.concatenate([np.full(n + 1, np.inf), np.ones(s)]),  # the deadline is set for each solution; it ends all starts too
        matrix=hstack([arriving - leaving, horizon, -(leaving.tocsr() @ used.tocsr())]),
        row_lower=np.concatenate([fastest_s[edges[:, 0]] + problem.graph.lag_s, fastest_s[sinks]]),
        row_upper=np.full(m + k, np.inf),
    )


def _units(problem: Problem, segments: int) -> Units:
    """Times count in the longest operation's time, energies in the costliest operation's; shares have no unit."""
    n, rows = len(problem.graph.vertices), len(problem.graph.edges) + len(problem.paths.sinks)
    time_s = problem.longest_operation_s
    return Units(np.concatenate([np.full(n + 1, time_s), np.ones(segments)]), np.full(rows, time_s), problem.costliest_operation_j)


def _lengths(values: FloatArray, hulls: _Hulls) -> FloatArray:
    """(s,) change of (n, F) values along every segment."""
    return np.asarray(values[hulls.vertex, hulls.slow] - values[hulls.vertex, hulls.fast], dtype=np.float64)


def _weights(problem: Problem, hulls: _Hulls, share: FloatArray) -> FloatArray:
    """Clock shares from used segments: a full segment passes all of its share on to its slow end."""
    n, columns = problem.tables.time_s.shape
    weights = np.zeros((n, columns))
    weights[np.arange(n), hulls.fastest] = 1.0
    for vertex, fast, slow, part in zip(hulls.vertex, hulls.fast, hulls.slow, share, strict=True):
        weights[vertex, slow] += part * weights[vertex, fast]
        weights[vertex, fast] *= 1 - part
    return weights


__all__ = ["Bound", "SolverError", "bound"]
