"""A plan with few switches made of one with more: the switches that matter least go, one after the other.

With very few switches a search from the bound's prices ends far from the best plan: prices say what an operation should do, not which of
many wishes is worth one of so few switches. A plan with more switches has answered that already, and loses little with each one. Only the
last ones are worth so much that they are not taken away one by one, but selected all together (:mod:`megatron_energy.planning.selection`).
Where hardly any switches are left, those are selected as well that a mix of whole sequences uses, as column generation finds it
(:mod:`megatron_energy.planning.columns`): it knows nothing of the plan with more.
"""

import time

import numpy as np

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.clock_program import best_clocks
from megatron_energy.planning.columns import limit
from megatron_energy.planning.economy import merged
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.selection import Cuts, Selection, boundaries, rounded
from megatron_energy.planning.sequences import Space, count_switches

ABOVE = 2
"""Levels above the last one whose switches are selected among."""

PROGRAMS, KEPT = 100, 8
"""Linear programs per selection and kind of choice, and the best of them that are made plans; in large jobs fewer."""

HARDLY = 4
"""Switches up to which column generation helps."""

ROUNDS = 40
"""Of column generation; in large jobs fewer."""

PLACES, LEAST_SHARE = 8, 1e-3
"""Positions of a unit at which a mix of sequences changes clocks that are selected among: most, and the least share of the mix."""

REFINED, MOST_REFINED = 1200, 3
"""Vertices of all plans together whose clocks are at last chosen anew, and plans at most; the best one in any case."""

WHOLE = 512
"""Vertices up to which all programs are solved and all rounds done."""


def thinned(problem: Problem, found: Bound, state: IntArray, more: int, fewer: int, lead_s: float, stop_at_s: float) -> IntArray:
    """Take switches away, one level after the other; at each the plan is polished, and from the last levels those to keep are selected.

    Args:
        problem: what is planned.
        found: its bound.
        state: (n,) clock columns in time, at most ``more`` switches per unit.
        more: levels begin below it ...
        fewer: ... and end at so many switches per unit.
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
            state = Polish(space, found.deadline_price_w).polished(state)
        if fewer < switches <= fewer + ABOVE:
            plans += _selected(target, state, boundaries(target, state), found, stop_at_s)
    if fewer <= HARDLY:
        plans += _selected(target, state, _of_sequences(target, found, state, stop_at_s), found, stop_at_s)
    target.price_raises(state)
    polish = Polish(target, found.deadline_price_w)
    best = sorted(_unlike([*plans, state]), key=polish.energy_j)[: int(np.clip(REFINED // max(len(state), 1), 1, MOST_REFINED))]
    return min((_refined(polish, plan, stop_at_s) for plan in best), key=polish.energy_j)


def _unlike(plans: list[IntArray]) -> list[IntArray]:
    return list({plan.tobytes(): plan for plan in plans}.values())


def _refined(polish: Polish, state: IntArray, stop_at_s: float) -> IntArray:
    """A plan with all its clocks chosen anew, together."""
    left_s = stop_at_s - time.thread_time()
    return polish.polished(best_clocks(polish.space, state, 1, left_s)[0]) if left_s > 0 else state


def _selected(target: Space, state: IntArray, cuts: dict[int, Cuts], found: Bound, stop_at_s: float) -> list[IntArray]:
    """Plans with the target's switches, selected among some boundaries."""
    part = _part(state)
    mixes = Selection(target, cuts).best(round(PROGRAMS * part), max(2, round(KEPT * part)), stop_at_s)
    target.price_raises(state)
    polish = Polish(target, found.deadline_price_w)
    plans = [rounded(target, mix, polish) for mix in mixes if time.thread_time() < stop_at_s]
    return [plan for plan in plans if plan is not None]


def _of_sequences(target: Space, found: Bound, state: IntArray, stop_at_s: float) -> dict[int, Cuts]:
    """Every unit's boundaries in a mix of whole sequences: those of the largest shares."""
    rounds = max(2, round(ROUNDS * _part(state)))
    share = limit(target, found, [target.baseline(), state], rounds, stop_at_s).change_share
    most = {unit: np.argsort(-own, kind="stable")[:PLACES] for unit, own in share.items()}
    return {unit: tuple(np.sort(places[share[unit][places] > LEAST_SHARE]).tolist()) for unit, places in most.items()}


def _part(state: IntArray) -> float:
    """Part of the work that there is time for."""
    return min(1.0, WHOLE / max(len(state), 1))


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
