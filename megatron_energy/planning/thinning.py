"""A plan with few switches made of one with more: the switches that matter least go, one after the other.

With very few switches a search from the bound's prices ends far from the best plan: prices say what an operation should do, not which of
many wishes is worth one of so few switches. A plan with more switches has answered that already, and loses little with each one.
"""

import time

import numpy as np

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.clock_program import best_clocks
from megatron_energy.planning.economy import merged
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space, count_switches


def thinned(problem: Problem, state: IntArray, more: int, fewer: int, deadline_price_w: float, lead_s: float, stop_at_s: float) -> IntArray:
    """Take switches away, one level after the other; at each, clocks are chosen anew and the plan is polished.

    Args:
        problem: what is planned.
        state: (n,) clock columns in time, at most ``more`` switches per unit.
        more: levels begin below it ...
        fewer: ... and end at so many switches per unit.
        deadline_price_w: J that a second of delay is worth, for the choice of candidates.
        lead_s: how early raises will be requested.
        stop_at_s: a safety net (time.monotonic): past it, levels only lose their switches.

    Returns:
        (n,) clock columns with at most ``fewer`` switches per unit; late where a clock that saves nothing also takes longer.
    """
    for switches in range(more - 1, fewer - 1, -1):
        space = Space(problem, switches, lead_s)
        state = _without_the_least(space, state)
        left_s = stop_at_s - time.monotonic()
        if not problem.meets_deadline(problem.iteration_s(state)):
            return state
        if left_s > 0:
            space.price_raises(state)
            state, _ = best_clocks(space, state, 1, left_s)
            state = Polish(space, deadline_price_w).polished(state)
    return state


def _without_the_least(space: Space, state: IntArray) -> IntArray:
    """Merge segments, the one that costs least for each switch that it takes away first, until no unit switches too often."""
    problem = space.problem
    while True:
        often = {unit for unit in space.units if count_switches(state[space.members[unit]]) > space.switches}
        candidates = [candidate for candidate in merged(space, state) if candidate.unit in often]
        if not candidates:
            return state
        durations, gain_j = space.trials(state, candidates)
        removed = np.array([count_switches(state[space.members[c.unit]]) - count_switches(c.sequence) for c in candidates])
        in_time = makespans(problem.graph, durations) <= problem.deadline_s
        state = space.apply(state, [candidates[int(np.where(in_time, gain_j / removed, np.inf).argmin())]])
