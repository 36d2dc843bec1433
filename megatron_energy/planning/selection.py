"""Which few of a plan's switches to keep, judged as if clocks were continuous.

With very few switches every unit has to do without something: a slow stretch while it waits for its first microbatches, one while it waits
for the last, or fast clocks at either end. What is best depends on what the other units do without, and shows only once the clocks of many
segments have followed. The linear program of tied clocks (:mod:`megatron_energy.planning.tied_lp`) follows them all in milliseconds. So the
boundaries of a plan with a few more switches are tried: of each unit those subsets that look best at the program's prices of time, one unit
after the other, as long as the program's optimum gets better. The best of them are rounded to real clocks in several ways, and polished.
"""

import time
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.lp import SolverError, solve
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.priced_start import sped_up
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space, cut_positions
from megatron_energy.planning.tied_lp import tied_program
from megatron_energy.planning.ties import Ties

TRIED = 5
"""Subsets of each unit's boundaries that are tried at a time: those that look best at the prices of time."""

RELUCTANCE = 2.5
"""Cost of leaving the present clocks where subsets are ranked: prices hold near them only."""

PRICE_FLOOR = 0.02
"""Part of the deadline's price that the time of every operation is taken to cost at least where it changes."""

ROUNDINGS = (0.3, 0.5, 0.7)
"""Parts of a clock step that are added before mean clocks are rounded towards the higher clock."""

SMALLEST = 1e-6
"""Gains below this part of the baseline's energy count for nothing."""


@dataclass(frozen=True)
class Mixed:
    """The optimum of given segments, each with a mix of clocks.

    Attributes:
        ties: a group per segment.
        energy_j: least energy, one GPU per unit, up to what does not depend on clocks.
        time_s: (n,) seconds of every vertex in the mix.
        column: (G,) mean clock column of every segment.
        price_w: (n,) J that one second more of a vertex costs.
        deadline_w: J that one second until the deadline is worth.
    """

    ties: Ties
    energy_j: float
    time_s: FloatArray
    column: FloatArray
    price_w: FloatArray
    deadline_w: float


def mixed(problem: Problem, ties: Ties) -> Mixed | None:
    """Solve for the best mix of clocks of every group; None: no clocks of these segments keep the deadline."""
    tied = tied_program(problem, ties)
    try:
        optimum = solve(tied.program, tied.units)
    except SolverError:
        return None
    share, clocked = tied.shares(optimum.x), np.flatnonzero(ties.group >= 0)
    leaving = np.concatenate([problem.graph.edges[:, 0], problem.paths.sinks])
    dual_w = np.maximum(optimum.row_dual[: len(leaving)], 0.0)
    time_s = problem.durations(ties.free)
    time_s[clocked] = (share[ties.group[clocked]] * problem.tables.time_s[clocked]).sum(axis=1)
    return Mixed(
        ties,
        optimum.objective,
        time_s,
        share @ np.arange(share.shape[1]),
        np.bincount(leaving, dual_w, len(time_s)).astype(np.float64),
        float(dual_w[len(problem.graph.edges) :].sum()),
    )


class Selection:
    """The search for the boundaries to keep.

    Args:
        space: the sequences to choose from.
        state: (n,) clock columns with more switches than the space allows.
    """

    def __init__(self, space: Space, state: IntArray) -> None:
        self.space = space
        self.cuts = {unit: cut_positions(state[space.members[unit]]).tolist() for unit in space.units}
        self.subsets = {unit: list(combinations(cuts, min(space.switches, len(cuts)))) for unit, cuts in self.cuts.items()}
        self.chosen: dict[int, int] = {}
        self.seen: dict[tuple[int, ...], Mixed | None] = {}
        self.parent = mixed(space.problem, self._ties(self.cuts))

    def best(self, programs: int, keep: int, stop_at_s: float) -> list[Mixed]:
        """Up to ``keep`` of the best optima found, best first, by solving so many programs, none begun after ``stop_at_s``."""
        now = None if self.parent is None else self._first(self.parent)
        while now is not None:
            before = now
            for unit in self.space.units:
                if len(self.seen) < programs and time.thread_time() < stop_at_s:
                    now = self._without_something_else(now, unit)
            if now is before:
                break
        found = [mix for mix in self.seen.values() if mix is not None]
        return sorted(found, key=lambda mix: mix.energy_j)[:keep]

    def _first(self, parent: Mixed) -> Mixed | None:
        weight_j = self._weights(parent)
        self.chosen = {unit: int(self._values(weight_j, unit).argmin()) for unit in self.space.units}
        return self._solved(self.chosen)

    def _without_something_else(self, now: Mixed, unit: int) -> Mixed:
        """The best of a few other subsets of one unit, if it is better."""
        least_j = SMALLEST * abs(self.space.problem.baseline_energy_j)
        ranked = np.argsort(self._values(self._weights(now), unit), kind="stable")[: TRIED + 1].tolist()
        held, best = self.chosen[unit], now
        for index in ranked:
            mix = self._solved(self.chosen | {unit: index}) if index != held else None
            if mix is not None and mix.energy_j < best.energy_j - least_j:
                best, self.chosen = mix, self.chosen | {unit: index}
        return best

    def _solved(self, chosen: dict[int, int]) -> Mixed | None:
        key = tuple(chosen.values())
        if key not in self.seen:
            ties = self._ties({unit: list(self.subsets[unit][index]) for unit, index in chosen.items()})
            self.seen[key] = mixed(self.space.problem, ties)
        return self.seen[key]

    def _ties(self, cuts: dict[int, list[int]]) -> Ties:
        problem = self.space.problem
        group, count = np.full(len(problem.graph.vertices), -1, dtype=np.int64), 0
        for unit, own in cuts.items():
            member, segments = self.space.members[unit], max(len(own), 1)
            number = np.searchsorted(np.array(own, dtype=np.int64), np.arange(len(member)), side="right") - 1
            group[member] = count + number % segments  # before the first boundary, the last one's segment goes on
            count += segments
        return Ties(group, count, problem.baseline_clocks)

    def _weights(self, mix: Mixed) -> FloatArray:
        """(n, F) what each clock costs at the prices, and for leaving the present one."""
        n, unit_s = len(mix.time_s), self.space.problem.longest_operation_s
        change_s = self.space.time_s[:n] - mix.time_s[:, np.newaxis]
        price_w = mix.price_w[:, np.newaxis]
        reluctance_w = RELUCTANCE * (price_w + PRICE_FLOOR * mix.deadline_w) / unit_s * change_s
        return np.asarray(self.space.cost_j[:n] + price_w * self.space.time_s[:n] + reluctance_w * change_s, dtype=np.float64)

    def _values(self, weight_j: FloatArray, unit: int) -> FloatArray:
        """(subsets,) cost of the cheapest clock for every segment."""
        own = weight_j[self.space.members[unit]]
        total = np.concatenate([np.zeros((1, own.shape[1])), np.cumsum(np.concatenate([own, own]), axis=0)])

        def cost(begins: tuple[int, ...]) -> float:
            ends = [*begins[1:], begins[0] + len(own)] if begins else [len(own)]
            return float(sum((total[end] - total[begin]).min() for begin, end in zip(begins or (0,), ends, strict=True)))

        return np.array([cost(begins) for begins in self.subsets[unit]])


def rounded(space: Space, mix: Mixed, polish: Polish) -> IntArray | None:
    """(n,) clock columns in time: the best of several roundings of a mix, polished; None if none can be brought in time."""
    plans: dict[bytes, IntArray] = {}
    for part in ROUNDINGS:
        columns = np.clip(np.floor(mix.column + part), 0, space.clocks - 1).astype(np.int64)
        in_time = sped_up(space.problem, mix.ties, columns)
        if in_time is not None:
            plans.setdefault(in_time.tobytes(), mix.ties.clocks(in_time))
    return min((polish.polished(plan) for plan in plans.values()), key=polish.energy_j, default=None)
