"""A plan with few switches made of the bound's prices of time, for a search to start from.

At the bound's price of time of every operation, an exact dynamic programme finds each unit's cheapest clock sequence with few switches.
Its switches are good, its clocks are not: a price tells how much a second is worth, not how many of them there are. So the linear program
of tied clocks, one mix per segment, finds how fast each segment has to be. The mixes are rounded to real clocks in several ways; those that
are late are sped up where a second costs least, until the deadline holds, and the best are improved segment by segment.
"""

from collections.abc import Sequence

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.dp import cheapest_cycle
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space
from megatron_energy.planning.tied_lp import tied_bound
from megatron_energy.planning.tied_search import TiedSearch
from megatron_energy.planning.ties import Ties

ROUNDINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of each mix, the clock at which so much of the work is done at it or at faster ones; 0 is in time at once. Its mean is tried as well."""

SMOOTHING = 1e-6
"""Part of the deadline over which paths count as critical while a plan is sped up: less than any plan is late, so all but exact."""

IMPROVED = 2
"""So many of the rounded plans are improved."""

STEPS = (1, 2, 3)
"""Columns by which a segment is sped up at once."""


def priced_start(space: Space, found: Bound) -> IntArray:
    """(n,) clock columns in time with at most ``space.switches`` switches per unit; the baseline's where nothing better is found.

    Args:
        space: the sequences to choose from.
        found: the bound of its problem.

    Raises:
        SolverError: not even the baseline keeps the deadline.
    """
    problem, state = space.problem, space.baseline()
    for unit in space.units:
        member = space.members[unit]
        priced_j = space.cost_j[member] + found.price_w[member][:, np.newaxis] * space.time_s[member]
        _, state[member] = cheapest_cycle(priced_j, space.switches)
    ties = segments_of(problem, state, space.members)
    shares = tied_bound(problem, ties).shares
    roundings = np.unique([_mean(shares), *(_rounded(shares, part) for part in ROUNDINGS)], axis=0)
    in_time = [columns for rounded in roundings if (columns := sped_up(problem, ties, rounded)) is not None]

    def energy_j(clocks: IntArray) -> float:
        return problem.energy_j(space.cost(clocks), problem.iteration_s(clocks))

    search = TiedSearch(problem, ties)
    best = sorted(in_time, key=lambda columns: energy_j(ties.clocks(columns)))[:IMPROVED]
    return min((space.baseline(), *(ties.clocks(search.one_by_one(columns)) for columns in best)), key=energy_j)


def segments_of(problem: Problem, state: IntArray, members: Sequence[IntArray]) -> Ties:
    """A group per segment of (n,) clock columns: neighbouring operations of a unit at one clock, around the iteration's end as well."""
    group, count = np.full(len(state), -1, dtype=np.int64), 0
    for member in members:
        if not len(member):
            continue
        number = np.cumsum(state[member] != np.roll(state[member], 1))
        segments = max(int(number.max()), 1)
        group[member] = count + number % segments  # before the first switch, the segment of the last one goes on
        count += segments
    return Ties(group, count, problem.baseline_clocks)


def sped_up(problem: Problem, ties: Ties, columns: IntArray) -> IntArray | None:
    """(G,) columns in time: one group after the other gets faster, the one that costs least per second of the longest path.

    Args:
        problem: its deadline is to be kept.
        ties: the groups.
        columns: (G,) to begin with.

    Returns:
        None if no group can get faster and the plan is late still. Every step makes a group's column lower, so that this ends.
    """
    tied = np.flatnonzero(ties.group >= 0)
    group, time_s, cost_j = ties.group[tied], problem.tables.time_s[tied], problem.cost_j[tied]
    rows = np.arange(len(tied))
    columns = columns.copy()
    while problem.iteration_s(clocks := ties.clocks(columns)) > problem.deadline_s:
        _, share = problem.paths.prices(problem.durations(clocks), SMOOTHING * problem.deadline_s)
        price_w = np.full((len(STEPS), ties.count), np.inf)
        for row, step in enumerate(STEPS):
            new, old = np.maximum(columns - step, 0)[group], columns[group]
            gain_s = np.bincount(group, share[tied] * (time_s[rows, old] - time_s[rows, new]), ties.count)
            more_j = np.bincount(group, cost_j[rows, new] - cost_j[rows, old], ties.count)
            np.divide(more_j, gain_s, out=price_w[row], where=gain_s > 1e-12 * problem.longest_operation_s)
        step_index, best = divmod(int(price_w.argmin()), ties.count)
        if not np.isfinite(price_w[step_index, best]):
            return None
        columns[best] = max(int(columns[best]) - STEPS[step_index], 0)
    return columns


def _mean(shares: FloatArray) -> IntArray:
    """(G,) mean columns of (G, F) mixes."""
    mean = shares @ np.arange(shares.shape[1]) / np.maximum(shares.sum(axis=1), 1e-9)
    return np.asarray(np.rint(mean), dtype=np.int64)


def _rounded(shares: FloatArray, part: float) -> IntArray:
    """(G,) columns of (G, F) mixes: the first at which ``part`` of the work is done."""
    done = np.cumsum(shares, axis=1) / np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
    return np.asarray((done >= np.clip(part, 1e-6, 1 - 1e-6)).argmax(axis=1), dtype=np.int64)
