"""A plan with few switches made of one with more: the switches that matter least go, one after the other.

With very few switches a search from the bound's prices ends far from the best plan: prices say what an operation should do, not which of
many wishes is worth one of so few switches. A plan with more switches has answered that already, and loses little with each one. Only the
last ones are worth so much that they are not taken away one by one, but selected all together (:mod:`megatron_energy.planning.selection`).
"""

import time

import numpy as np

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.clock_program import best_clocks
from megatron_energy.planning.economy import merged
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.selection import Selection, rounded
from megatron_energy.planning.sequences import Space, count_switches

ABOVE = 2
"""Levels above the last one whose switches are selected among."""

PROGRAMS, KEPT = 100, 8
"""Linear programs per selection, and the best of them that are made plans; in large jobs fewer."""

REFINED, MOST_REFINED = 1200, 3
"""Vertices of all plans together whose clocks are at last chosen anew, and plans at most; the best one in any case."""

WHOLE = 512
"""Vertices up to which all of them are solved."""


def thinned(problem: Problem, state: IntArray, more: int, fewer: int, deadline_price_w: float, lead_s: float, stop_at_s: float) -> IntArray:
    """Take switches away, one level after the other; at each the plan is polished, and from the last levels those to keep are selected.

    Args:
        problem: what is planned.
        state: (n,) clock columns in time, at most ``more`` switches per unit.
        more: levels begin below it ...
        fewer: ... and end at so many switches per unit.
        deadline_price_w: J that a second of delay is worth, for the choice of candidates.
        lead_s: how early raises will be requested.
        stop_at_s: a safety net (time.thread_time): past it, levels only lose their switches.

    Returns:
        (n,) clock columns with at most ``fewer`` switches per unit; late where a clock that saves nothing also takes longer.
    """
    target, plans = Space(problem, fewer, lead_s), []
    for switches in range(more - 1, fewer - 1, -1):
        space = Space(problem, switches, lead_s)
        state = _without_the_least(space, state)
        if not problem.meets_deadline(problem.iteration_s(state)):
            return state
        if time.thread_time() < stop_at_s:
            space.price_raises(state)
            state = Polish(space, deadline_price_w).polished(state)
        if fewer < switches <= fewer + ABOVE:
            plans += _selected(target, state, deadline_price_w, stop_at_s)
    target.price_raises(state)
    polish = Polish(target, deadline_price_w)
    best = sorted(_unlike([*plans, state]), key=polish.energy_j)[: int(np.clip(REFINED // max(len(state), 1), 1, MOST_REFINED))]
    return min((_refined(polish, plan, stop_at_s) for plan in best), key=polish.energy_j)


def _unlike(plans: list[IntArray]) -> list[IntArray]:
    return list({plan.tobytes(): plan for plan in plans}.values())


def _refined(polish: Polish, state: IntArray, stop_at_s: float) -> IntArray:
    """A plan with all its clocks chosen anew, together."""
    left_s = stop_at_s - time.thread_time()
    return polish.polished(best_clocks(polish.space, state, 1, left_s)[0]) if left_s > 0 else state


def _selected(target: Space, state: IntArray, deadline_price_w: float, stop_at_s: float) -> list[IntArray]:
    """Plans with the target's switches, selected among those of a plan with a few more."""
    part = min(1.0, WHOLE / max(len(state), 1))
    mixes = Selection(target, state).best(round(PROGRAMS * part), max(2, round(KEPT * part)), stop_at_s)
    target.price_raises(state)
    polish = Polish(target, deadline_price_w)
    plans = [rounded(target, mix, polish) for mix in mixes if time.thread_time() < stop_at_s]
    return [plan for plan in plans if plan is not None]


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
