"""Clock sequences: which clock each GPU of a unit runs at, operation by operation, around the iteration.

A *sequence* is the clock columns of one unit's operations in order. The wrap from the last to the first operation counts as a
neighbourhood like any other, as iterations follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans, replay
from megatron_energy.planning.early import lead_cost_j
from megatron_energy.planning.problem import Problem


def count_switches(sequence: IntArray) -> int:
    """Adjacent pairs of different clocks, counted cyclically; 0 for one clock throughout."""
    return len(cut_positions(sequence))


def clocked_vertices(problem: Problem) -> tuple[IntArray, ...]:
    """Per unit, the vertices that have a clock to choose, in execution order.

    Operations always; grad sync, optimizer and other steps only where the tables say that the clock matters. Elsewhere the
    clock in force stays.
    """
    tables = problem.tables
    varies = (np.ptp(tables.time_s, axis=1) > 0) | (np.ptp(tables.energy_j, axis=1) > 0)
    chosen = [varies[v] or vertex.kind in ("forward", "backward") for v, vertex in enumerate(problem.graph.vertices)]
    return tuple(np.array([v for v in chain.tolist() if chosen[v]], dtype=np.int64) for chain in problem.graph.chains)


def useful_columns(problem: Problem) -> int:
    """Number of clock columns, from the highest, that can save energy: none below the last one is faster or cheaper, for any vertex."""
    both = np.concatenate([problem.tables.time_s, problem.cost_j]).reshape(2, -1, problem.tables.time_s.shape[1])
    below = np.minimum.accumulate(both[:, :, ::-1], axis=2)[:, :, ::-1]  # least of each column and all below it
    last = int(np.argmax((both <= below).all(axis=(0, 1))))  # true of the lowest clock in any case
    return max(last, problem.baseline_column) + 1


@dataclass(frozen=True)
class Candidate:
    """One unit's new sequence."""

    unit: int
    sequence: IntArray


class Space:
    """The sequences of all units with at most ``switches`` changes, and what they cost.

    State is (n,) clock columns, one per vertex; vertices without a choice keep column 0. Tables carry one more row of zeros, index n, which
    pads units with fewer operations.

    Attributes:
        members: per unit, its vertices with a choice.
        time_s, cost_j: (n + 1, F) at the useful clocks.
        raise_j: (n + 1, F) J of changing to each clock early, up to a constant per vertex; see :meth:`price_raises`.
    """

    def __init__(self, problem: Problem, switches: int, lead_s: float = 0.0) -> None:
        self.problem = problem
        self.switches = switches
        self.lead_s = lead_s
        self.members = clocked_vertices(problem)
        self.clocks = useful_columns(problem)
        self.length = max((len(member) for member in self.members), default=0)
        self.units = [unit for unit, member in enumerate(self.members) if len(member)]
        void = np.zeros((1, self.clocks))
        self.time_s = np.concatenate([problem.tables.time_s[:, : self.clocks], void])
        self.cost_j = np.concatenate([problem.cost_j[:, : self.clocks], void])
        self.raise_j: FloatArray | None = None

    def order(self, unit: int, first: int = 0) -> IntArray:
        """(length,) the unit's vertices from position ``first`` around, padded with n."""
        member = self.members[unit]
        return np.concatenate([member[first:], member[:first], np.full(self.length - len(member), len(self.time_s) - 1)])

    def baseline(self) -> IntArray:
        """(n,) the state of the GPUs as found."""
        return np.full(len(self.problem.graph.vertices), self.problem.baseline_column, dtype=np.int64)

    def durations(self, state: IntArray) -> FloatArray:
        """(n,) seconds."""
        return np.asarray(self.time_s[np.arange(len(state)), state], dtype=np.float64)

    def cost(self, state: IntArray) -> float:
        """Effective J of a state, early raises included."""
        return self.problem.effective_j(state) + sum(self.raises(unit, state[self.members[unit]]) for unit in self.units)

    def unit_cost(self, unit: int, sequence: IntArray) -> float:
        """Effective J of one unit's sequence, early raises included."""
        return float(self.cost_j[self.members[unit], sequence].sum()) + self.raises(unit, sequence)

    def raises(self, unit: int, sequence: IntArray) -> float:
        """J that the unit's raises cost for coming early."""
        if self.raise_j is None:
            return 0.0
        member = self.members[unit]
        extra = self.raise_j[member, sequence] - self.raise_j[member, np.roll(sequence, 1)]
        return float(np.maximum(extra, 0.0).sum())

    def price_raises(self, state: IntArray) -> None:
        """Estimate what early raises cost around a state (:mod:`megatron_energy.planning.early`)."""
        if self.lead_s <= 0:
            return
        result = replay(self.problem.graph, self.durations(state))
        raise_j = np.zeros_like(self.cost_j)
        for unit in self.units:
            member = self.members[unit]
            raise_j[member] = lead_cost_j(result, member, self.cost_j[member], self.lead_s)
        self.raise_j = np.maximum.accumulate(raise_j[:, ::-1], axis=1)[:, ::-1]  # exact where power falls with the clock, as it does

    def trials(self, state: IntArray, candidates: Sequence[Candidate]) -> tuple[FloatArray, FloatArray]:
        """((n, B) durations, (B,) change of effective J) when each candidate alone replaces its unit's sequence."""
        durations = np.repeat(self.durations(state)[:, np.newaxis], len(candidates), axis=1)
        gain = np.empty(len(candidates))
        now = {unit: self.unit_cost(unit, state[self.members[unit]]) for unit in {c.unit for c in candidates}}
        for column, candidate in enumerate(candidates):
            member = self.members[candidate.unit]
            durations[member, column] = self.time_s[member, candidate.sequence]
            gain[column] = self.unit_cost(candidate.unit, candidate.sequence) - now[candidate.unit]
        return durations, gain

    def change_j(self, state: IntArray, durations: FloatArray, gain: FloatArray, latest_s: float) -> FloatArray:
        """(B,) change of the energy, what the longer or shorter waiting costs included; infinite where an iteration takes longer than that.

        Args:
            state: (n,) clock columns that are compared with.
            durations: (n, B) seconds.
            gain: (B,) change of effective J.
            latest_s: the longest iteration.
        """
        problem = self.problem
        length_s = makespans(problem.graph, durations)
        now_s = max(problem.iteration_s(state), problem.earliest_horizon_s)
        horizon_s = np.maximum(length_s, problem.earliest_horizon_s) - now_s
        return np.where(length_s <= latest_s, gain + problem.horizon_power_w * horizon_s, np.inf)

    def accumulated(self, state: IntArray, candidates: Sequence[Candidate], durations: FloatArray, ranked: Sequence[int]) -> FloatArray:
        """(n, R) durations when the first, the first two, ... of R candidates of different units replace their sequences.

        Args:
            state: (n,) clock columns.
            candidates: B of them.
            durations: (n, B) as :meth:`trials` gives them.
            ranked: R indices of candidates.
        """
        together = np.repeat(self.durations(state)[:, np.newaxis], len(ranked), axis=1)
        for row, index in enumerate(ranked):
            member = self.members[candidates[index].unit]
            together[member, row:] = durations[member, index][:, np.newaxis]
        return together

    def apply(self, state: IntArray, candidates: Sequence[Candidate]) -> IntArray:
        """A new state with the candidates' sequences, one per unit."""
        new: IntArray = state.copy()
        for candidate in candidates:
            new[self.members[candidate.unit]] = candidate.sequence
        return new


def distinct(candidates: Sequence[Candidate], state: IntArray, members: Sequence[IntArray]) -> list[Candidate]:
    """Candidates without repetitions and without those that change nothing."""
    seen = {(unit, state[member].tobytes()) for unit, member in enumerate(members)}
    kept = []
    for candidate in candidates:
        key = candidate.unit, candidate.sequence.tobytes()
        if key not in seen:
            seen.add(key)
            kept.append(candidate)
    return kept


def cut_positions(sequence: IntArray) -> IntArray:
    """Positions whose clock differs from the one before (cyclically)."""
    return np.flatnonzero(sequence != sequence[np.arange(-1, len(sequence) - 1)])
