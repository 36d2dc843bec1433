"""Lock-step units of unlike GPUs: which clock each member should run at when the unit keeps a given pace.

The tensor- and context-parallel GPUs of a stage, and replicas that exchange tokens between experts, begin and end every operation
together. So an operation takes as long as its slowest member, and the others wait at blocking power P. With n_m GPUs of kind m that take
t_m(f_m) and use e_m(f_m), a unit that takes T uses::

    sum over m of n_m (e_m + P (T - t_m))  =  sum over m of n_m (e_m - P t_m)  +  P T x GPUs

The first sum is separable: for every T each member takes the clock with the least e - P t among those with t <= T, and no other choice
that is done by T costs less. A *joint column* is one such choice, a clock for every member. It stands in the planner's tables where a
clock stands for units of like GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray


@dataclass(frozen=True)
class Members:
    """The GPUs of one unit by kind, M kinds, each with what k operations cost at F clocks, highest first.

    Attributes:
        time_s: (M, k, F) seconds.
        energy_j: (M, k, F) joules of one GPU while it computes.
        gpus: (M,) GPUs of each kind.
    """

    time_s: FloatArray
    energy_j: FloatArray
    gpus: IntArray

    def joint_columns(self, blocking_power_w: float) -> IntArray:
        """(C, M) joint columns: first every member at its highest clock, the GPUs as found; then from fast to slow.

        They contain the cheapest choice for every operation at every pace that any choice of clocks can have, so a plan per operation
        loses nothing against choosing all clocks freely (members of one kind choose alike). They also contain, for every clock, a
        choice that replaces all members at that clock: no operation takes longer or costs more, see :meth:`replacements`.
        """
        kinds, _, clocks = self.time_s.shape
        if kinds == 1:  # like GPUs: every clock is a column, as elsewhere
            return np.arange(clocks, dtype=np.int64)[:, np.newaxis]
        operations, cost_j = self._operations(blocking_power_w)
        found = [_cheapest_by_pace(self.time_s[:, k], cost_j[:, k]) for k in operations]
        as_found = np.zeros((1, kinds), dtype=np.int64)
        columns = np.unique(np.concatenate([as_found, self.replacements(blocking_power_w), *found]), axis=0)
        pace = self._pace(columns, operations)
        pace[(columns == 0).all(axis=1)] = -np.inf
        # Equally fast ones differ in cost alone: the cheaper one last, where a search for savings looks.
        spent_j = np.einsum("cmk,m->c", _chosen(cost_j, columns)[:, :, operations], self.gpus.astype(np.float64))
        return columns[np.lexsort((-spent_j, pace))]

    def replacements(self, blocking_power_w: float) -> IntArray:
        """(F, M): for all members at one clock, a choice of clocks that is better or equal in every operation's time and cost.

        Each member takes the clock that costs it least, all operations added, among those that hold no operation up and make none
        of them cost more.
        """
        operations, cost_j = self._operations(blocking_power_w)
        time_s, cost_j = self.time_s[:, operations], cost_j[:, operations]
        allowed_s = time_s.max(axis=0)  # (k, F)
        columns = np.empty((time_s.shape[2], len(time_s)), dtype=np.int64)
        for clock in range(time_s.shape[2]):
            no_later = (time_s <= allowed_s[:, clock, np.newaxis]).all(axis=1)  # (M, F)
            no_dearer = (cost_j <= cost_j[:, :, clock, np.newaxis]).all(axis=1)
            columns[clock] = np.where(no_later & no_dearer, cost_j.sum(axis=1), np.inf).argmin(axis=1)
        return columns

    def _operations(self, blocking_power_w: float) -> tuple[list[int], FloatArray]:
        """(one operation of every kind, (M, k, F) effective cost of all operations)."""
        cost_j = self.energy_j - blocking_power_w * self.time_s
        return _distinct(self.time_s, cost_j), cost_j

    def cost(self, columns: IntArray, blocking_power_w: float) -> tuple[FloatArray, FloatArray]:
        """((k, C) seconds, (k, C) mean joules of one GPU, waiting inside operations included) at (C, M) joint columns."""
        return self._unit_cost(_chosen(self.time_s, columns), _chosen(self.energy_j, columns), blocking_power_w)

    def at(self, clocks: IntArray, blocking_power_w: float) -> tuple[FloatArray, FloatArray]:
        """((k,) seconds, (k,) mean joules of one GPU) when every operation has clocks of its own: (M, k) columns."""
        kinds, operations = np.arange(len(self.gpus))[:, np.newaxis], np.arange(clocks.shape[1])
        times_s, energies_j = self.time_s[kinds, operations, clocks], self.energy_j[kinds, operations, clocks]
        time_s, mean_j = self._unit_cost(times_s[np.newaxis], energies_j[np.newaxis], blocking_power_w)
        return time_s[:, 0], mean_j[:, 0]

    def _unit_cost(self, times_s: FloatArray, energies_j: FloatArray, blocking_power_w: float) -> tuple[FloatArray, FloatArray]:
        """(k, C) seconds and mean joules of the unit, from (C, M, k) of its members."""
        time_s = times_s.max(axis=1)
        waiting_j = blocking_power_w * (time_s[:, np.newaxis] - times_s)
        share = self.gpus / self.gpus.sum()
        return time_s.T.copy(), np.asarray(np.einsum("cmk,m->kc", energies_j + waiting_j, share), dtype=np.float64)

    def _pace(self, columns: IntArray, operations: Sequence[int]) -> FloatArray:
        """(C,) how long the operations take, relative to the GPUs as found; mean over operations."""
        time_s = _chosen(self.time_s, columns).max(axis=1)[:, operations]
        as_found_s = self.time_s[:, operations, 0].max(axis=0)
        return np.asarray((time_s / np.maximum(as_found_s, 1e-300)).mean(axis=1), dtype=np.float64)


def _chosen(values: FloatArray, columns: IntArray) -> FloatArray:
    """(C, M, k) of (M, k, F) values at (C, M) columns."""
    return np.asarray(np.stack([values[m][:, columns[:, m]].T for m in range(len(values))], axis=1), dtype=np.float64)


def _distinct(time_s: FloatArray, cost_j: FloatArray) -> list[int]:
    """One operation of each kind whose clock makes a difference; all of one kind look alike. The first operation if none does."""
    seen: dict[bytes, int] = {}
    for k in range(time_s.shape[1]):
        if np.ptp(time_s[:, k], axis=-1).any() or np.ptp(cost_j[:, k], axis=-1).any():
            seen.setdefault(time_s[:, k].tobytes() + cost_j[:, k].tobytes(), k)
    return list(seen.values()) or [0]


def _cheapest_by_pace(time_s: FloatArray, cost_j: FloatArray) -> IntArray:
    """(c, M) for one operation, (M, F): at every possible duration, every member's cheapest clock that is no slower."""
    paces_s = np.unique(time_s[time_s >= time_s.min(axis=1).max()])
    columns = np.empty((len(paces_s), len(time_s)), dtype=np.int64)
    for member, (times, costs) in enumerate(zip(time_s, cost_j, strict=True)):
        order = np.lexsort((np.arange(len(times)), times))  # fastest first, of equals the higher clock
        cheapest = np.minimum.accumulate(costs[order])
        is_new = np.concatenate([[True], costs[order][1:] < cheapest[:-1]])
        best = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
        columns[:, member] = best[np.searchsorted(times[order], paces_s, side="right") - 1]
    return columns
