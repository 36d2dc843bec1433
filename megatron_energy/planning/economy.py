"""Switches that save next to nothing are dropped: every clock request costs driver time, and one that fails costs more."""

import numpy as np

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.problem import TIME_TOLERANCE
from megatron_energy.planning.sequences import Candidate, Space, count_switches, cut_positions

WORTH = 5e-5
"""Part of a unit's baseline energy that a switch has to save to be kept (0.005%: far below what can be measured)."""


def economise(space: Space, state: IntArray) -> IntArray:
    """(n,) clock columns with the switches of ``state`` that are worth it; the deadline is kept.

    One after the other, the segment is merged into a neighbour that costs least for the switches it removes, as long as each of
    them saved less than :data:`WORTH`. An iteration that becomes longer costs what the waiting GPUs draw, even if it keeps the deadline.
    """
    problem = space.problem
    worth_j = WORTH * abs(problem.baseline_energy_j) / max(len(space.units), 1)
    latest_s = problem.deadline_s * (1 + TIME_TOLERANCE)
    while candidates := merged(space, state):
        durations, gain = space.trials(state, candidates)
        removed = np.array([count_switches(state[space.members[c.unit]]) - count_switches(c.sequence) for c in candidates])
        loss = space.change_j(state, durations, gain, latest_s) - worth_j * removed
        best = int(loss.argmin())
        if loss[best] >= 0:
            break
        state = space.apply(state, [candidates[best]])
    return state


def merged(space: Space, state: IntArray) -> list[Candidate]:
    """Every unit with one segment taken over by the one before or after."""
    found = []
    for unit in space.units:
        sequence = state[space.members[unit]]
        cuts = cut_positions(sequence)
        for index, cut in enumerate(cuts):
            after = cuts[(index + 1) % len(cuts)]
            inside = (cut + np.arange((after - cut) % len(sequence))) % len(sequence)
            for clock in {int(sequence[cut - 1]), int(sequence[after])}:
                merged = sequence.copy()
                merged[inside] = clock
                found.append(Candidate(unit, merged))
    return found
