"""Improving a plan that is in time, the deadline kept exactly.

Candidates (:func:`megatron_energy.planning.moves.intervals`) are judged by replay, not by prices: at first each alone, the best of every
unit taken together as far as they are in time together; where none helps, two of different units, one slower and one faster.
"""

from collections.abc import Sequence

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.moves import Prices, intervals
from megatron_energy.planning.sequences import Candidate, Space, distinct

SMOOTHING = 1.5e-4
"""Part of the deadline over which paths count as critical where candidates are ranked."""

TRIED_NUMBERS = 1 << 21
"""Durations that are replayed at once."""

MOST, FEWEST = 300, 24
"""Candidates of each unit, if they are not too many numbers together."""

PAIRED = 12
"""Candidates of each unit of which pairs are made."""

PAIRS = 400
STEPS = 60

SETTLED = 2e-6
"""Gains below this part of the baseline's energy count for nothing."""


class Polish:
    """Improves plans of one space.

    Args:
        space: the sequences to choose from; what early raises cost may be priced anew between calls.
        deadline_price_w: J that a second of delay is worth, for the choice of candidates.
    """

    def __init__(self, space: Space, deadline_price_w: float) -> None:
        self.space = space
        self.deadline_s = space.problem.deadline_s
        self.price_w = deadline_price_w
        self.settled_j = SETTLED * abs(space.problem.baseline_energy_j)
        numbers = len(space.problem.graph.vertices) * max(len(space.units), 1)
        self.count = int(np.clip(TRIED_NUMBERS // max(numbers, 1), FEWEST, MOST))

    def polished(self, state: IntArray, steps: int = STEPS) -> IntArray:
        """(n,) clock columns no worse than ``state``, which is in time."""
        for _ in range(steps):
            chosen = self._better(state)
            if not chosen:
                break
            state = self.space.apply(state, chosen)
        return state

    def energy_j(self, state: IntArray) -> float:
        """J of one GPU per unit, early raises included."""
        problem = self.space.problem
        return problem.energy_j(self.space.cost(state), problem.iteration_s(state))

    def _better(self, state: IntArray) -> list[Candidate]:
        """Candidates that together save energy and are in time; empty if none were found."""
        problem, tau_s = self.space.problem, SMOOTHING * self.deadline_s
        _, share = problem.paths.prices(self.space.durations(state), tau_s)
        found = intervals(self.space, state, Prices(share, self.price_w, tau_s), self.count)
        candidates = distinct(found, state, self.space.members)
        if not candidates:
            return []
        durations, gain = self.space.trials(state, candidates)
        change_j = self.space.change_j(state, durations, gain, self.deadline_s)
        if change_j.min() < -self.settled_j:
            return self._together(state, candidates, durations, gain, change_j)
        return self._pair(state, candidates, durations, gain)

    def _together(
        self, state: IntArray, candidates: Sequence[Candidate], durations: FloatArray, gain: FloatArray, change_j: FloatArray
    ) -> list[Candidate]:
        """The best candidate of every unit, best first, as many as save the most together."""
        ranked = best_per_unit(candidates, change_j, -self.settled_j)
        together = self.space.accumulated(state, candidates, durations, ranked)
        best = int(self.space.change_j(state, together, np.cumsum(gain[ranked]), self.deadline_s).argmin())
        return [candidates[index] for index in ranked[: best + 1]]

    def _pair(self, state: IntArray, candidates: Sequence[Candidate], durations: FloatArray, gain: FloatArray) -> list[Candidate]:
        unit = np.array([candidate.unit for candidate in candidates])
        rank = np.array([np.count_nonzero(unit[:i] == u) for i, u in enumerate(unit.tolist())])  # intervals come best first
        few = np.flatnonzero(rank < PAIRED)
        first, second = (few[part] for part in np.triu_indices(len(few), 1))
        saved_j = gain[first] + gain[second]
        useful = np.flatnonzero((unit[first] != unit[second]) & (saved_j < -self.settled_j))
        useful = useful[np.argsort(saved_j[useful], kind="stable")[-PAIRS:]]  # those that save little are the likeliest in time
        if not len(useful):
            return []
        first, second = first[useful], second[useful]
        pairs = durations[:, first] + durations[:, second] - self.space.durations(state)[:, np.newaxis]
        change_j = self.space.change_j(state, pairs, saved_j[useful], self.deadline_s)
        best = int(change_j.argmin())
        return [candidates[int(first[best])], candidates[int(second[best])]] if change_j[best] < -self.settled_j else []


def best_per_unit(candidates: Sequence[Candidate], score: FloatArray, below: float = 0.0) -> list[int]:
    """Indices of the best candidate of each unit, best first, of those that score below ``below``."""
    ranked: list[int] = []
    taken: set[int] = set()
    for index in np.argsort(score, kind="stable").tolist():
        if score[index] >= below:
            break
        if candidates[index].unit not in taken:
            taken.add(candidates[index].unit)
            ranked.append(index)
    return ranked
