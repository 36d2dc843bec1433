"""A plan with few switches made of the bound's prices of time, for a search to start from.

At the bound's price of time of every operation, an exact dynamic programme finds each unit's cheapest clock sequence with few switches.
Its switches are good, its clocks are not: a price tells how much a second is worth, not how many of them there are. So the clocks are also
chosen by the time that the bound gives to all operations of a segment together. Either plan is late; segments are sped up where a second
costs least until the deadline holds, and then improved one by one. All of it takes seconds for ten thousand operations.
"""

from collections.abc import Sequence

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.dp import cheapest_cycle
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space
from megatron_energy.planning.tied_search import TiedSearch
from megatron_energy.planning.ties import Ties

SMOOTHING = 1e-6
"""Part of the deadline over which paths count as critical while a plan is sped up: less than any plan is late, so all but exact."""

STEPS = (1, 2, 3)
"""Columns by which a segment is sped up at once."""


def priced_start(space: Space, found: Bound) -> IntArray:
    """(n,) clock columns in time with at most ``space.switches`` switches per unit; the baseline's where nothing better is found.

    Args:
        space: the sequences to choose from.
        found: the bound of its problem.
    """
    problem, state = space.problem, space.baseline()
    for unit in space.units:
        member = space.members[unit]
        priced_j = space.cost_j[member] + found.price_w[member][:, np.newaxis] * space.time_s[member]
        _, state[member] = cheapest_cycle(priced_j, space.switches)
    ties = segments_of(problem, state, space.members)
    search = TiedSearch(problem, ties)
    plans = [space.baseline()]
    for columns in (ties.columns(state), _as_long(problem, ties, found.duration_s)):
        in_time = sped_up(problem, ties, columns)
        if in_time is not None:
            plans.append(ties.clocks(search.one_by_one(in_time)))
    return min(plans, key=lambda clocks: problem.energy_j(space.cost(clocks), problem.iteration_s(clocks)))


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


def _as_long(problem: Problem, ties: Ties, duration_s: FloatArray) -> IntArray:
    """(G,) the cheapest columns at which the vertices of each group together take no longer than (n,) ``duration_s``, else the fastest."""
    tied = np.flatnonzero(ties.group >= 0)
    shape = ties.count, problem.tables.time_s.shape[1]
    time_s, cost_j, limit_s = np.zeros(shape), np.zeros(shape), np.zeros(ties.count)
    np.add.at(time_s, ties.group[tied], problem.tables.time_s[tied])
    np.add.at(cost_j, ties.group[tied], problem.cost_j[tied])
    np.add.at(limit_s, ties.group[tied], duration_s[tied])
    allowed = time_s <= limit_s[:, np.newaxis] * (1 + 1e-9)
    allowed[np.arange(ties.count), time_s.argmin(axis=1)] = True
    return np.asarray(np.where(allowed, cost_j, np.inf).argmin(axis=1), dtype=np.int64)
