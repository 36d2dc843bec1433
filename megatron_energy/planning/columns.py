"""The limit: the least energy of any plan with at most so many switches, proven by column generation.

A *column* is the whole clock sequence of one unit. The master program mixes columns of every unit; its prices of time let an exact cyclic
dynamic programme find the cheapest sequence of each unit. For any prices, the sum of those costs minus what the deadline is worth
is a lower bound on every plan (Lagrangian relaxation of the dependency edges; Dantzig and Wolfe, Operations Research 8, 1960).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix, hstack, vstack

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.bound import Bound, leaving_rows
from megatron_energy.planning.dp import cheapest_cycle
from megatron_energy.planning.lp import LinearProgram, Units, solve
from megatron_energy.planning.problem import TIME_TOLERANCE
from megatron_energy.planning.sequences import Space

CLOSE_PERCENT = 0.02
"""Gap between the master program and the proven limit, in points of saving, at which the search ends."""


@dataclass(frozen=True)
class Limit:
    """What column generation proved.

    Attributes:
        energy_j: no plan with so few switches uses less (one GPU per unit).
        state: (n,) clock columns: of every unit the sequence with the largest share in the last mix. It may miss the deadline.
        change_share: per unit (N,) the share of that mix in which the clock changes at each position.
        complete: time did not run out before the rounds did.
    """

    energy_j: float
    state: IntArray
    change_share: Mapping[int, FloatArray]
    complete: bool = True


@dataclass(frozen=True)
class _Mix:
    """An optimum of the master program: energy, (r,) price of every row, (columns,) unit's index and share of every column."""

    energy_j: float
    price_w: FloatArray
    owner: IntArray
    share: FloatArray


class _Master:
    """The program that mixes the columns found so far.

    Rows as in :mod:`megatron_energy.planning.bound`: start(b) - start(a) - duration(a) >= lag for edges, H - start - duration >= 0 for
    sinks; then one row per unit: its shares add up to 1.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        problem, graph = space.problem, space.problem.graph
        edges, sinks, n = graph.edges, problem.paths.sinks, len(graph.vertices)
        rows = len(edges) + len(sinks)
        self.latest_s = problem.deadline_s * (1 + TIME_TOLERANCE)
        self.leaving = leaving_rows(problem).tocsr()
        self.arriving = coo_matrix((np.ones(len(edges)), (np.arange(len(edges)), edges[:, 1])), shape=(rows, n)).tocsr()
        self.at_sinks = np.arange(rows) >= len(edges)
        chosen = np.zeros(n, dtype=bool)
        chosen[np.concatenate(space.members)] = True
        fixed_s = np.where(chosen, 0.0, space.time_s[:n, 0])
        self.fixed_j = float(space.cost_j[:n, 0][~chosen].sum())
        self.gap_s: FloatArray = np.concatenate([graph.lag_s, np.zeros(len(sinks))]) + self.leaving @ fixed_s
        self.columns: dict[int, list[IntArray]] = {unit: [] for unit in space.units}

    def add(self, state: IntArray) -> None:
        """Offer every unit's sequence of a state."""
        for unit, known in self.columns.items():
            sequence = state[self.space.members[unit]]
            if not any(np.array_equal(sequence, other) for other in known):
                known.append(sequence)

    def solve(self) -> _Mix:
        """The best mix."""
        problem, units = self.space.problem, self.space.units
        n, rows = self.arriving.shape[1], len(self.gap_s)
        owner = np.array([index for index, unit in enumerate(units) for _ in self.columns[unit]])
        costs = [float(self.space.cost_j[self.space.members[unit], s].sum()) for unit in units for s in self.columns[unit]]
        durations = hstack([self._durations(unit) for unit in units])
        horizon = csr_matrix(self.at_sinks.astype(np.float64)[:, np.newaxis])
        timing = hstack([self.arriving - self.leaving, horizon, -(self.leaving @ durations)])
        shares = coo_matrix((np.ones(len(owner)), (owner, n + 1 + np.arange(len(owner)))), shape=(len(units), n + 1 + len(owner)))
        optimum = solve(
            LinearProgram(
                cost=np.concatenate([np.zeros(n), [problem.horizon_power_w], costs]),
                lower=np.concatenate([np.zeros(n), [problem.earliest_horizon_s], np.zeros(len(owner))]),
                upper=np.concatenate([np.full(n + 1, self.latest_s), np.ones(len(owner))]),
                matrix=vstack([timing, shares]),
                row_lower=np.concatenate([self.gap_s, np.ones(len(units))]),
                row_upper=np.concatenate([np.full(rows, np.inf), np.ones(len(units))]),
            ),
            Units(
                np.concatenate([np.full(n + 1, problem.longest_operation_s), np.ones(len(owner))]),
                np.concatenate([np.full(rows, problem.longest_operation_s), np.ones(len(units))]),
                problem.costliest_operation_j,
            ),
        )
        price_w = np.maximum(optimum.row_dual[:rows], 0.0)
        return _Mix(optimum.objective + self.fixed_j, price_w, owner, optimum.x[n + 1 :])

    def _durations(self, unit: int) -> Any:
        """(n, columns) sparse seconds of the unit's vertices in each of its columns."""
        member, columns = self.space.members[unit], np.array(self.columns[unit])
        column = np.repeat(np.arange(len(columns)), len(member))
        times = self.space.time_s[member, columns].ravel()
        return coo_matrix((times, (np.tile(member, len(columns)), column)), shape=(self.arriving.shape[1], len(columns)))

    def largest(self, mix: _Mix) -> IntArray:
        """(n,) clock columns: of every unit the sequence with the largest share."""
        state = self.space.baseline()
        for index, unit in enumerate(self.space.units):
            state[self.space.members[unit]] = self.columns[unit][int(mix.share[mix.owner == index].argmax())]
        return state

    def change_share(self, mix: _Mix) -> dict[int, FloatArray]:
        """Per unit (N,) the share in which the clock changes at each position."""
        columns = {unit: np.array(self.columns[unit]) for unit in self.space.units}
        changed = {unit: column != np.roll(column, 1, axis=1) for unit, column in columns.items()}
        return {unit: mix.share[mix.owner == index] @ changed[unit] for index, unit in enumerate(self.space.units)}

    def proven(self, price_w: FloatArray) -> tuple[float, IntArray]:
        """(least energy of any plan by these prices, the state that attains it); valid for any prices >= 0."""
        space, problem = self.space, self.space.problem
        out = self.leaving.T @ price_w
        early = np.minimum(out - self.arriving.T @ price_w, 0.0).sum() * self.latest_s  # starts as late as they may
        spare_w = problem.horizon_power_w - price_w[self.at_sinks].sum()
        total = self.fixed_j + price_w @ self.gap_s + early + min(spare_w * problem.earliest_horizon_s, spare_w * self.latest_s)
        state = space.baseline()
        for unit in space.units:
            member = space.members[unit]
            cost, state[member] = cheapest_cycle(space.cost_j[member] + out[member][:, np.newaxis] * space.time_s[member], space.switches)
            total += cost
        return float(total), state


def limit(space: Space, found: Bound, states: Sequence[IntArray], rounds: int, stop_at_s: float) -> Limit:
    """Prove a limit, better with more rounds.

    Args:
        space: the sequences to choose from; early raises count nothing here, which keeps the limit valid.
        found: the bound, for first prices.
        states: (n,) states whose sequences are offered from the start; one must keep the deadline.
        rounds: most column generation rounds.
        stop_at_s: none begins after this time.thread_time().
    """
    master = _Master(space)
    for state in states:
        master.add(state)
    best_j, centre = -np.inf, found.row_price_w
    price_w, mix, complete = centre, None, True
    for _ in range(rounds):
        proven_j, state = master.proven(price_w)
        if proven_j > best_j:
            best_j, centre = proven_j, price_w
        master.add(state)
        mix = master.solve()
        if space.problem.saved_percent(best_j) - space.problem.saved_percent(mix.energy_j) < CLOSE_PERCENT:
            break
        if time.thread_time() > stop_at_s:
            complete = False
            break
        price_w = 0.5 * (centre + mix.price_w)  # pure master prices swing too far
    mix = master.solve() if mix is None else mix
    return Limit(best_j, master.largest(mix), master.change_share(mix), complete)
