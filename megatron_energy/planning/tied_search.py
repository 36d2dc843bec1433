"""From the mixes of clocks that the tied linear program finds to one real clock per group, the deadline kept exactly.

The mixes are rounded, repaired until the plan is in time, and improved: one group at a time, then two at a time, one of them slower
and one faster. Everything is judged by replay. Deterministic.
"""

from collections.abc import Iterable

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.candidates import BATCH_NUMBERS, evaluate_all, in_time
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.ties import Ties

SINGLE_STEPS = (-6, -4, -3, -2, -1, 1, 2, 3, 4, 6)
"""Changes of one group's clock that are tried, in columns."""

PAIR_STEPS = ((1, -1), (1, -2), (2, -1), (2, -3), (3, -2))
"""Changes of two groups' clocks that are tried together: one slower, one faster."""

REPAIR_STEPS = (-1, -2, -3)
"""Changes of one group's clock that are tried to save time."""

ROUNDS = 60
"""Improvements at most; published profiles need fewer than half of them."""


class TiedSearch:
    """One clock per group, from several starts. States are (G,) columns, one per group."""

    def __init__(self, problem: Problem, ties: Ties) -> None:
        self.problem = problem
        self.ties = ties
        self.clocks = problem.tables.time_s.shape[1]
        self.cost_j = np.zeros((ties.count, self.clocks))
        np.add.at(self.cost_j, ties.group[ties.group >= 0], problem.cost_j[ties.group >= 0])
        self.settled_j = 1e-12 * max(abs(problem.baseline_energy_j), float(np.abs(problem.cost_j).max(initial=0.0)))

    def best(self, shares: FloatArray, others: Iterable[IntArray] = ()) -> IntArray:
        """(n,) clock columns of the cheapest state found.

        Args:
            shares: (G, F) mixes of clocks to round.
            others: (n,) clock columns to start from as well; the result is never worse than those that keep the deadline.
        """
        starts = [self._repaired(state) for state in _rounded(shares)]
        starts += [self.ties.columns(clocks) for clocks in [self.problem.baseline_clocks, *others]]
        found = np.stack([self._improved(state) for state in np.unique(np.stack(starts), axis=0)])
        return self.ties.clocks(found[int(self._values(found).argmin())])

    def one_by_one(self, columns: IntArray) -> IntArray:
        """(G,) columns improved by changes of single groups alone: in large jobs there is no time for pairs. ``columns`` are in time."""
        value = float(self._values(columns[np.newaxis])[0])
        for _ in range(ROUNDS):
            new, new_value = self._taken(columns, self._singles(columns, SINGLE_STEPS), value)
            if new_value >= value - self.settled_j:
                break
            columns, value = new, new_value
        return columns

    def _evaluated(self, states: IntArray) -> tuple[FloatArray, FloatArray]:
        """(B,) iteration times in s and (B,) energies in J of (B, G) states; in parts, as clocks of all vertices take more memory."""
        size = max(1, BATCH_NUMBERS // max(len(self.ties.group), 1))
        parts = [evaluate_all(self.problem, self.ties.clocks(states[i : i + size])) for i in range(0, len(states) or 1, size)]
        return np.concatenate([time_s for time_s, _ in parts]), np.concatenate([cost_j for _, cost_j in parts])

    def _values(self, states: IntArray) -> FloatArray:
        """(B,) energies in J of (B, G) states, infinite for late ones."""
        iteration_s, energy_j = self._evaluated(states)
        return np.where(in_time(self.problem, iteration_s), energy_j, np.inf)

    def _repaired(self, state: IntArray) -> IntArray:
        """Speed up one group after the other, each time the one that costs least per second gained, until the state is in time.

        It ends: every step shortens the iteration, and there are finitely many states. Where no single group gains time, the baseline's
        clocks stand: they are in time.
        """
        while True:
            now_s, now_j = (float(part[0]) for part in self._evaluated(state[np.newaxis]))
            if self.problem.meets_deadline(now_s):
                return state
            moves = self._singles(state, REPAIR_STEPS)
            new_s, new_j = self._evaluated(moves)
            gain_s = np.minimum(now_s - new_s, now_s - self.problem.deadline_s)
            if not (gain_s > 0).any():
                return self.ties.columns(self.problem.baseline_clocks)
            price_w = np.full(len(moves), np.inf)
            np.divide(new_j - now_j, gain_s, out=price_w, where=gain_s > 0)
            state = moves[int(price_w.argmin())]

    def _improved(self, state: IntArray) -> IntArray:
        """Improve a state until neither one nor two changes help."""
        value = float(self._values(state[np.newaxis])[0])
        for _ in range(ROUNDS):
            for moves in (self._singles(state, SINGLE_STEPS), self._pairs(state)):
                new, new_value = self._taken(state, moves, value)
                if new_value < value - self.settled_j:
                    state, value = new, new_value
                    break
            else:
                break
        return state

    def _taken(self, state: IntArray, moves: IntArray, value: float) -> tuple[IntArray, float]:
        """Take the moves that help, best first and one per group, as many of them together as pay."""
        if not len(moves):
            return state, value
        values = self._values(moves)
        together, touched = [state], np.zeros(self.ties.count, dtype=bool)
        for index in np.argsort(values, kind="stable").tolist():
            changed = moves[index] != state
            if values[index] >= value - self.settled_j:
                break
            if not (touched & changed).any():
                touched |= changed
                together.append(np.where(changed, moves[index], together[-1]))
        prefixes = np.stack(together)
        found = self._values(prefixes)
        best = int(found.argmin())
        return prefixes[best], float(found[best])

    def _singles(self, state: IntArray, steps: tuple[int, ...]) -> IntArray:
        """(B, G) states that differ in one group."""
        group, step = (part.ravel() for part in np.meshgrid(np.arange(self.ties.count), np.array(steps), indexing="ij"))
        moves = np.repeat(state[np.newaxis], len(group), axis=0)
        moves[np.arange(len(group)), group] += step
        return self._valid(moves)

    def _pairs(self, state: IntArray) -> IntArray:
        """(B, G) states in which one group is slower and another faster, and the operations together cost less."""
        groups = np.arange(self.ties.count)
        one, two, pair = (part.ravel() for part in np.meshgrid(groups, groups, np.arange(len(PAIR_STEPS)), indexing="ij"))
        steps = np.array(PAIR_STEPS)[pair]
        slow, fast = state[one] + steps[:, 0], state[two] + steps[:, 1]
        keep = np.flatnonzero((one != two) & (slow < self.clocks) & (fast >= 0))
        one, two, slow, fast = one[keep], two[keep], slow[keep], fast[keep]
        change_j = self.cost_j[one, slow] - self.cost_j[one, state[one]] + self.cost_j[two, fast] - self.cost_j[two, state[two]]
        keep = np.flatnonzero(change_j < 0)
        moves = np.repeat(state[np.newaxis], len(keep), axis=0)
        moves[np.arange(len(keep)), one[keep]] = slow[keep]
        moves[np.arange(len(keep)), two[keep]] = fast[keep]
        return moves

    def _valid(self, moves: IntArray) -> IntArray:
        return np.asarray(moves[((moves >= 0) & (moves < self.clocks)).all(axis=1)], dtype=np.int64)


def _rounded(shares: FloatArray) -> list[IntArray]:
    """States near the mixes: the fastest clock of each mix, its slowest, and its mean."""
    used = shares > 1e-9
    columns = np.arange(shares.shape[1])
    fastest, slowest = used.argmax(axis=1), shares.shape[1] - 1 - used[:, ::-1].argmax(axis=1)
    return [part.astype(np.int64) for part in (fastest, slowest, np.rint(shares @ columns / np.maximum(shares.sum(axis=1), 1e-9)))]
