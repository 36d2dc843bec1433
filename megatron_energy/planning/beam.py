"""Clocks chosen one operation after the other, about in the order of time, many partial plans at once: a beam search.

A plan's energy above the bound is a sum over its parts: what each clock costs above the best one at the operation's price of time, and
the waiting between two operations at the price of their edge (:class:`megatron_energy.planning.bound.Bound`). So partial plans can be
compared before they are complete. Running late is no loss by itself, later operations can make up for it at their prices; but units
that are late by different times will wait for each other, and that counts in advance, in part.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.sequences import clocked_vertices
from megatron_energy.planning.slack import latest_ends_s

CLOCKS = 6
"""Clocks tried per operation: those with the least cost at its price of time, on the hull or not."""

ALIKE = 0.1
"""Plans whose ends differ by less than this part of a clock's step are one."""

TOGETHER = 4
"""Operations of a unit whose clocks are chosen right after each other."""

LEAST_STEP = 1e-6
"""Part of the longest operation below which times count as equal here."""

SPARE = 4
"""Times as many plans are compared for likeness as are kept."""

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Partial:
    """B partial plans.

    Attributes:
        live: L vertices whose ends others still wait for.
        end_s: (L, B) their ends.
        loss_j: (B,) energy above the bound so far.
        spent_j: (B,) effective energy so far.
    """

    live: list[int]
    end_s: FloatArray
    loss_j: FloatArray
    spent_j: FloatArray


class Beam:
    """Searches one problem for clocks near its bound.

    Attributes:
        chosen: (n,) which vertices have a clock to choose.
        columns: (n, c) the clocks tried, the best at the vertex's price of time first.
        order: (n,) vertices in the order in which clocks are chosen; none waits for one after it.
    """

    def __init__(self, problem: Problem, found: Bound) -> None:
        graph, count = problem.graph, len(problem.graph.vertices)
        self.problem, self._price_w = problem, found.price_w
        loss_j = problem.cost_j + found.price_w[:, np.newaxis] * problem.tables.time_s
        self._loss_j: FloatArray = loss_j - loss_j.min(axis=1, keepdims=True)
        self.columns: IntArray = np.argsort(self._loss_j, axis=1, kind="stable")[:, :CLOCKS]
        self.chosen = np.zeros(count, dtype=bool)
        self.chosen[np.concatenate(clocked_vertices(problem))] = True
        self._due_s = replay(graph, found.duration_s).end_s
        self.order = _chosen_in_order(problem, self._due_s)
        self._place = np.argsort(self.order)
        self._before: list[list[tuple[int, float, float]]] = [[] for _ in range(count)]
        self._last = np.full(count, -1)  # the place of the last one that waits for it
        for (a, b), lag_s, price_w in zip(graph.edges.tolist(), graph.lag_s.tolist(), found.row_price_w.tolist(), strict=False):
            self._before[b].append((a, lag_s, price_w))
            self._last[a] = max(self._last[a], self._place[b])
        self._sink_w = np.zeros(count)
        self._sink_w[problem.paths.sinks] = found.row_price_w[len(graph.edges) :]
        self._horizon_s = min(found.iteration_s, problem.deadline_s)
        self._grid_s = ALIKE * _step_s(problem, self.columns[self.chosen], self.chosen)
        self._mix = np.random.default_rng(0).integers(1, 1 << 62, count)  # of hashes

    def search(self, clocks: IntArray, free: BoolArray, width: int, caution: float) -> IntArray | None:
        """Choose the clocks of some vertices anew; the others keep theirs.

        Args:
            clocks: (n,) clock columns.
            free: (n,) whose clocks are to be chosen.
            width: partial plans that are kept after every step.
            caution: part of the waiting that unlike delays may cause, counted in advance.

        Returns:
            (n,) clock columns that keep the deadline; None where none were found.
        """
        free = free & self.chosen
        places = np.sort(self._place[free])
        if not len(places):
            return None
        time_s, columns = self.problem.tables.time_s, self.columns
        fastest_s = np.take_along_axis(time_s, columns, axis=1).min(axis=1)
        limit_s = latest_ends_s(self.problem, np.where(free, fastest_s, self.problem.durations(clocks)))
        limit_s += TIME_TOLERANCE / 2 * self.problem.deadline_s
        steps = self.order[places[0] : places[-1] + 1].tolist()
        plans, history = self._begin(clocks, int(places[0])), []
        for vertex in steps:
            tried = columns[vertex] if free[vertex] else clocks[vertex : vertex + 1]
            step = self._step(plans, vertex, tried, float(limit_s[vertex]), width, caution)
            if step is None:
                return None
            plans, parent, column = step
            history.append((parent, column))
        found, plan = clocks.copy(), int(plans.spent_j.argmin())
        for vertex, (parent, column) in zip(reversed(steps), reversed(history), strict=True):
            found[vertex], plan = column[plan], parent[plan]
        return found if self.problem.meets_deadline(self.problem.iteration_s(found)) else None

    def _begin(self, clocks: IntArray, first: int) -> _Partial:
        """The one partial plan before a place in the order."""
        live = self.order[:first][self._last[self.order[:first]] >= first]
        end_s = replay(self.problem.graph, self.problem.durations(clocks)).end_s[live]
        return _Partial(live.tolist(), end_s[:, np.newaxis], np.zeros(1), np.zeros(1))

    def _step(
        self, plans: _Partial, vertex: int, columns: IntArray, limit_s: float, width: int, caution: float
    ) -> tuple[_Partial, IntArray, IntArray] | None:
        """(the best plans with one vertex more, the plan that each comes from, its clock column); None if all are late."""
        ready_s, waiting_j = self._ready(plans, vertex)
        end_s = ready_s[:, np.newaxis] + self.problem.tables.time_s[vertex, columns]
        loss_j = (plans.loss_j + waiting_j)[:, np.newaxis] + self._loss_j[vertex, columns]
        loss_j = loss_j + self._sink_w[vertex] * (self._horizon_s - end_s)
        place = self._place[vertex]
        kept = np.flatnonzero(self._last[np.array(plans.live, dtype=np.int64)] > place)
        live = [plans.live[row] for row in kept.tolist()]
        rank_j = loss_j + caution * self._unlike_j(live, plans.end_s[kept], vertex, end_s)
        best = np.flatnonzero((end_s <= limit_s).ravel())
        if not len(best):
            return None
        best = best[_least(rank_j.ravel()[best], SPARE * width)]
        parent, choice = np.divmod(best, len(columns))
        ends_s = plans.end_s[np.ix_(kept, parent)]
        if self._last[vertex] >= 0:
            live, ends_s = [*live, vertex], np.vstack([ends_s, end_s.ravel()[best]])
        first = self._different(live, ends_s)[:width]
        parent, column, best = parent[first], columns[choice[first]], best[first]
        spent_j = plans.spent_j[parent] + self.problem.cost_j[vertex, column]
        return _Partial(live, ends_s[:, first], loss_j.ravel()[best], spent_j), parent, column

    def _ready(self, plans: _Partial, vertex: int) -> tuple[FloatArray, FloatArray]:
        """((B,) when it can start, (B,) J that those before it lose by waiting for that)."""
        ready_s, waiting_j = np.zeros(len(plans.loss_j)), np.zeros(len(plans.loss_j))
        rows = [(plans.end_s[plans.live.index(a)] + lag_s, price_w) for a, lag_s, price_w in self._before[vertex]]
        for arrival_s, _ in rows:
            ready_s = np.maximum(ready_s, arrival_s)
        for arrival_s, price_w in rows:
            if price_w > 0:
                waiting_j += price_w * (ready_s - arrival_s)
        return ready_s, waiting_j

    def _unlike_j(self, live: list[int], ends_s: FloatArray, vertex: int, end_s: FloatArray) -> FloatArray:
        """(B, k) how far the delays against the bound's schedule are apart, at the vertices' prices."""
        price_w = self._price_w[live]
        late_s = ends_s - self._due_s[live][:, np.newaxis]
        own_w, own_s = self._price_w[vertex], end_s - self._due_s[vertex]
        total_w = price_w.sum() + own_w
        if total_w <= 0:
            return np.zeros_like(end_s)
        mean_s = ((price_w @ late_s)[:, np.newaxis] + own_w * own_s) / total_w
        unlike_j = own_w * np.abs(own_s - mean_s)
        for weight_w, delay_s in zip(price_w, late_s, strict=True):
            if weight_w > 0:
                unlike_j += weight_w * np.abs(delay_s[:, np.newaxis] - mean_s)
        return np.asarray(unlike_j, dtype=np.float64)

    def _different(self, live: list[int], ends_s: FloatArray) -> IntArray:
        """Of plans in order, the first of each kind of ends."""
        cell = np.rint(ends_s / self._grid_s).astype(np.int64)
        _, first = np.unique((cell * self._mix[live][:, np.newaxis]).sum(axis=0), return_index=True)
        return np.sort(first)


def _chosen_in_order(problem: Problem, end_s: FloatArray) -> IntArray:
    """Vertices in an order in which each comes after those it waits for: by their end, a few of a unit at a time.

    How long two operations of a unit take together can be met far more closely than how long one takes, if both are chosen together.
    """
    edges, place = problem.graph.edges, np.argsort(_in_time_order(problem, end_s))
    turn = place.copy()
    for unit in range(len(problem.graph.units)):
        members = np.flatnonzero(problem.graph.unit_of_vertex == unit)
        members = members[np.argsort(place[members])]
        turn[members] = np.repeat(place[members[::TOGETHER]], TOGETHER)[: len(members)]
    missing = np.bincount(edges[:, 1], minlength=len(place))
    after: list[list[int]] = [[] for _ in place]
    for a, b in edges.tolist():
        after[a].append(b)
    ready = [(int(turn[v]), int(place[v]), v) for v in np.flatnonzero(missing == 0).tolist()]
    heapify(ready)
    order: list[int] = []
    while ready:
        vertex = heappop(ready)[2]
        order.append(vertex)
        for b in after[vertex]:
            missing[b] -= 1
            if not missing[b]:
                heappush(ready, (int(turn[b]), int(place[b]), b))
    return np.array(order, dtype=np.int64)


def _in_time_order(problem: Problem, end_s: FloatArray) -> IntArray:
    """Vertices by their end; those of no length after what they wait for."""
    depth = np.zeros(len(end_s), dtype=np.int64)
    for number, level in enumerate(problem.graph.levels.levels):
        depth[level.vertices] = number
    return np.lexsort((depth, end_s))


def _step_s(problem: Problem, columns: IntArray, chosen: BoolArray) -> float:
    """Typical time between the two best clocks of a vertex; the longest operation's where there is none."""
    if not chosen.any():
        return problem.longest_operation_s
    time_s = np.take_along_axis(problem.tables.time_s[chosen], columns[:, :2], axis=1)
    return max(float(np.median(np.ptp(time_s, axis=1))), LEAST_STEP * problem.longest_operation_s)


def _least(values: FloatArray, count: int) -> IntArray:
    """Indices of the least values, in order."""
    if len(values) <= count:
        return np.argsort(values, kind="stable")
    part = np.sort(np.argpartition(values, count)[:count])
    return np.asarray(part[np.argsort(values[part], kind="stable")], dtype=np.int64)
