"""What real clocks alone cost: an energy that no plan with one clock per operation goes below, above the bound, which mixes clocks.

Three things that hold for every plan in time raise the bound. An operation that takes longer than the time between its earliest start
and its latest end, everything else at its fastest, is late: such clocks are left out. Two operations that nothing comes between are one,
with every pair of clocks as its clocks, and those that are late are left out too. The linear program of what is left gives prices, and
at these prices the iteration falls apart into blocks: an edge that leaves a block costs what it is late, those inside are kept. Branch and
bound finds the least energy of each block at real clocks or, cut short, proves one that it does not go below. The sum holds for the whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix, hstack, identity, vstack

from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.beam import Beam
from megatron_energy.planning.bound import BoundProgram
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.slack import latest_ends_s
from megatron_energy.profiles.tables import Tables

BLOCK = 128
"""Vertices of a block: larger ones prove more and take longer."""

NODES = 1000
"""Of branch and bound, per block; the same number proves the same."""

NET_S = 600.0
"""Seconds, a safety net for one block, far above what it takes."""

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Merged:
    """A problem whose vertices are single operations or pairs of them.

    Attributes:
        problem: its columns are pairs of clocks, or clocks, that are not late by themselves and that nothing faster undercuts.
        real: (n, C) whether a vertex has that column; the others repeat its last one.
        members: (k,) the vertex that each vertex of the problem given has become part of.
    """

    problem: Problem
    real: BoolArray
    members: IntArray


def least_energy_j(problem: Problem, clocks: IntArray, block: int = BLOCK, nodes: int = NODES) -> float:
    """Joules, one GPU per unit, that no plan in time with one clock per operation goes below.

    Args:
        problem: graph, tables, deadline.
        clocks: (k,) clock columns of a plan in time: what costs more need not be looked at.
        block: vertices of a block.
        nodes: of branch and bound, per block.
    """
    merged = merge(problem)
    least = BoundProgram(merged.problem).at(problem.deadline_s, problem.earliest_horizon_s)
    edges, rows = merged.problem.graph.edges, least.row_price_w.copy()
    known = Known(merged, clocks_of(merged, problem, clocks))
    latest_s = problem.deadline_s * (1 + TIME_TOLERANCE)
    earliest_s = max(problem.earliest_horizon_s, float((known.earliest_s + known.fastest_s).max()))
    if earliest_s >= problem.deadline_s * (1 - TIME_TOLERANCE):  # an earlier end gains nothing: blocks end when they have to
        rows[len(edges) :] = 0
    order = Beam(merged.problem, least).order
    number = np.zeros(len(order), dtype=np.int64)
    number[order] = np.arange(len(order)) // block
    cut = number[edges[:, 0]] != number[edges[:, 1]]
    blocks_j = sum(known.block_j(np.flatnonzero(number == index), rows, nodes) for index in range(int(number.max()) + 1))
    spare_w = problem.horizon_power_w - rows[len(edges) :].sum()
    return float(blocks_j + rows[: len(edges)][cut] @ merged.problem.graph.lag_s[cut] + spare_w * (earliest_s if spare_w > 0 else latest_s))


def merge(problem: Problem) -> Merged:
    """Merge every vertex with the one after it, where neither has other neighbours there, and leave out columns that are late."""
    graph, n = problem.graph, len(problem.graph.vertices)
    after = dict(_pairs(graph))
    firsts = np.setdiff1d(np.arange(n), list(after.values()))
    members = np.zeros(n, dtype=np.int64)
    members[firsts] = np.arange(len(firsts))
    for first, second in after.items():
        members[second] = members[first]
    fastest_s = problem.tables.time_s.min(axis=1)
    start_s, end_s = replay(graph, fastest_s).start_s, latest_ends_s(problem, fastest_s)
    choices = [_choices(problem, first, after.get(first), end_s[after.get(first, first)] - start_s[first]) for first in firsts.tolist()]
    width = max(len(time_s) for time_s, _ in choices)
    time_s, cost_j = (np.array([np.pad(choice[i], (0, width - len(choice[i])), mode="edge") for choice in choices]) for i in (0, 1))
    inside = members[graph.edges[:, 0]] == members[graph.edges[:, 1]]
    chains = tuple(np.array(list(dict.fromkeys(members[chain].tolist())), dtype=np.int64) for chain in graph.chains)
    vertices = tuple(graph.vertices[first] for first in firsts)
    smaller = Graph(graph.units, vertices, members[graph.edges[~inside]], graph.lag_s[~inside], chains)
    result = Problem(  # its costs are those above; energies at this blocking power make them again
        smaller,
        Tables(np.arange(width), time_s, cost_j + problem.blocking_power_w * time_s),
        problem.blocking_power_w,
        given_deadline_s=problem.deadline_s,
    )
    return Merged(result, np.arange(width) < np.array([[len(choice[0])] for choice in choices]), members)


def _pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    """Edges that are the only one of both of their ends, none with an end in common with another."""
    leaving, arriving = (np.bincount(graph.edges[:, side], minlength=len(graph.vertices)) for side in (0, 1))
    taken: set[int] = set()
    for (first, second), lag_s in zip(graph.edges.tolist(), graph.lag_s.tolist(), strict=True):
        if leaving[first] == arriving[second] == 1 and lag_s == 0 and not {first, second} & taken:
            taken |= {first, second}
            yield first, second


def _choices(problem: Problem, first: int, second: int | None, window_s: float) -> tuple[FloatArray, FloatArray]:
    """((c,) times, (c,) costs) of one or two vertices that take no longer than their window, fastest first, each cheaper than the last."""
    time_s, cost_j = problem.tables.time_s[first], problem.cost_j[first]
    if second is not None:
        time_s = np.add.outer(time_s, problem.tables.time_s[second]).ravel()
        cost_j = np.add.outer(cost_j, problem.cost_j[second]).ravel()
    order = np.lexsort((cost_j, time_s))
    order = order[time_s[order] <= window_s + 2 * TIME_TOLERANCE * problem.deadline_s]
    before_j = np.r_[np.inf, np.minimum.accumulate(cost_j[order])[:-1]]
    order = order[cost_j[order] < before_j]
    return time_s[order], cost_j[order]


def clocks_of(merged: Merged, problem: Problem, clocks: IntArray) -> IntArray:
    """(n,) columns of the merged problem that take no longer than (k,) clocks of the problem given, the cheapest of these."""
    limit_s = np.bincount(merged.members, weights=problem.durations(clocks)) + TIME_TOLERANCE * problem.longest_operation_s
    fits = merged.real & (merged.problem.tables.time_s <= limit_s[:, np.newaxis])
    return np.asarray(np.where(fits, merged.problem.cost_j, np.inf).argmin(axis=1), dtype=np.int64)


class Known:
    """What every block is told: when its vertices can start and end at all, and a plan.

    Args:
        merged: the problem.
        clocks: (n,) its clock columns.
    """

    def __init__(self, merged: Merged, clocks: IntArray) -> None:
        problem = merged.problem
        self.problem, self.real, self.clocks = problem, merged.real, clocks
        self.fastest_s = problem.tables.time_s.min(axis=1)
        self.earliest_s = replay(problem.graph, self.fastest_s).start_s
        self.latest_s = latest_ends_s(problem, self.fastest_s) + 2 * TIME_TOLERANCE * problem.deadline_s
        self.start_s = replay(problem.graph, problem.durations(clocks)).start_s

    def block_j(self, block: IntArray, rows: FloatArray, nodes: int) -> float:
        """A block's costs and what edges that leave it cost by starts and ends at (m + k,) prices: no clocks take less."""
        edges, n, m = self.problem.graph.edges, len(self.clocks), len(self.problem.graph.edges)
        place = np.full(n, -1)
        place[block] = np.arange(len(block))
        inside = (place[edges] >= 0).all(axis=1)
        out_w, into_w = (self._sums_w(edges[~inside, side], rows[:m][~inside]) for side in (0, 1))
        out_w[self.problem.paths.sinks] += rows[m:]
        start_w = (out_w - into_w)[block]
        cost_j = self.problem.cost_j[block] + out_w[block, np.newaxis] * self.problem.tables.time_s[block]
        inner_w = [self._sums_w(edges[inside, side], rows[:m][inside])[block] for side in (0, 1)]
        allowed = self._affordable(block, cost_j, start_w, inner_w, float(rows[:m][inside] @ self.problem.graph.lag_s[inside]))
        return self._least_j(block, place[edges[inside]], self.problem.graph.lag_s[inside], allowed, cost_j, start_w, nodes)

    def _sums_w(self, vertices: IntArray, price_w: FloatArray) -> FloatArray:
        """(n,) sums of the prices of edges by the vertex at one end."""
        return np.bincount(vertices, weights=price_w, minlength=len(self.clocks)).astype(np.float64)

    def _affordable(self, block: IntArray, cost_j: FloatArray, start_w: FloatArray, inner_w: list[FloatArray], lag_j: float) -> BoolArray:
        """(b, C) columns that are not proven, at the prices of the edges inside, to make the block dearer than the plan does."""
        at_prices_j = np.where(self.real[block], cost_j + inner_w[0][:, np.newaxis] * self.problem.tables.time_s[block], np.inf)
        least_j = at_prices_j.min(axis=1)
        all_w, first_s, last_s = start_w + inner_w[0] - inner_w[1], self.earliest_s[block], (self.latest_s - self.fastest_s)[block]
        proven_j = least_j.sum() + lag_j + np.where(all_w > 0, all_w * first_s, all_w * last_s).sum()
        plan_j = cost_j[np.arange(len(block)), self.clocks[block]].sum() + start_w @ self.start_s[block]
        return np.asarray(at_prices_j - least_j[:, np.newaxis] <= plan_j - proven_j + 1e-9 * abs(plan_j))

    def _least_j(
        self, block: IntArray, edges: IntArray, lag_s: FloatArray, allowed: BoolArray, cost_j: FloatArray, start_w: FloatArray, nodes: int
    ) -> float:
        """Variables: starts after the earliest ones in the longest operation's time, then a share of each allowed column."""
        k, count, unit_s = len(block), len(edges), self.problem.longest_operation_s
        owner, column = np.nonzero(allowed)
        time_s = self.problem.tables.time_s[block][owner, column] / unit_s
        earliest_s, shares = self.earliest_s[block], len(owner)
        lasting = coo_matrix((time_s, (owner, np.arange(shares))), shape=(k, shares)).tocsr()
        first, second = (coo_matrix((np.ones(count), (np.arange(count), edges[:, side])), shape=(count, k)).tocsr() for side in (0, 1))
        one_each = coo_matrix((np.ones(shares), (owner, np.arange(shares))), shape=(k, shares))
        matrix: Any = vstack(
            [hstack([second - first, -(first @ lasting)]), hstack([identity(k), lasting]), hstack([coo_matrix((k, k)), one_each])]
        )
        apart_s = lag_s - (second - first) @ earliest_s
        found = milp(
            np.r_[start_w * unit_s, cost_j[owner, column]],
            integrality=np.r_[np.zeros(k), np.ones(shares)],
            bounds=Bounds(0.0, np.r_[(self.latest_s - self.fastest_s)[block] - earliest_s, np.full(shares, unit_s)] / unit_s),
            constraints=LinearConstraint(
                matrix.tocsc(),
                np.r_[apart_s / unit_s, np.full(k, -np.inf), np.ones(k)],
                np.r_[np.full(count, np.inf), (self.latest_s[block] - earliest_s) / unit_s, np.ones(k)],
            ),
            options={"node_limit": nodes, "mip_rel_gap": 0.0, "time_limit": NET_S, "presolve": True},
        )
        if found.mip_dual_bound is None:
            raise RuntimeError(f"a block was not solved: {found.message}")
        return float(found.mip_dual_bound + start_w @ earliest_s)
