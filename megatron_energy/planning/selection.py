"""Which few of a plan's switches to keep, judged as if clocks were continuous.

With very few switches every unit has to do without something: a slow stretch while it waits for its first microbatches, one while it waits
for the last, or fast clocks at either end. What is best depends on what the other units do without, and shows only once the clocks of many
segments have followed. The linear program of tied clocks (:mod:`megatron_energy.planning.tied_lp`) follows them all in milliseconds. So the
boundaries of a plan with a few more switches are tried: of each unit those subsets that look best at the program's prices of time, one unit
after the other, as long as the program's optimum gets better; then boundaries are shifted in the same way. The best of them are rounded to
real clocks in several ways, and polished.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.mixes import Mixed, mixed
from megatron_energy.planning.polish import Polish
from megatron_energy.planning.priced_start import sped_up
from megatron_energy.planning.sequences import Space, cut_positions
from megatron_energy.planning.ties import Ties

TRIED = 5
"""Other boundaries of a unit that are tried at a time: those that look best at the prices of time."""

SHIFTS = (-8, -4, -3, -2, -1, 1, 2, 3, 4, 8)
"""Operations by which a boundary is shifted."""

RELUCTANCE = 2.5
"""Cost of leaving the present clocks where subsets are ranked: prices hold near them only."""

PRICE_FLOOR = 0.02
"""Part of the deadline's price that the time of every operation is taken to cost at least where it changes."""

ROUNDINGS = (0.3, 0.5, 0.7)
"""Parts of a clock step that are added before mean clocks are rounded towards the higher clock."""

SMALLEST = 1e-6
"""Gains below this part of the baseline's energy count for nothing."""


Cuts = tuple[int, ...]
"""Positions of a unit at which segments begin, ascending."""


def boundaries(space: Space, state: IntArray) -> dict[int, Cuts]:
    """Every unit's boundaries in (n,) clock columns."""
    return {unit: tuple(cut_positions(state[space.members[unit]]).tolist()) for unit in space.units}


class Selection:
    """The search for the boundaries to keep.

    Args:
        space: the sequences to choose from.
        cuts: every unit's boundaries to choose among; where there are no more than the space allows, all are kept.
    """

    def __init__(self, space: Space, cuts: Mapping[int, Cuts]) -> None:
        self.space = space
        self._subsets = {unit: list(combinations(own, min(space.switches, len(own)))) for unit, own in cuts.items()}
        self._chosen: dict[int, Cuts] = {}
        self._seen: dict[tuple[Cuts, ...], Mixed | None] = {}
        self._parent = mixed(space.problem, self._ties(cuts))

    def best(self, programs: int, keep: int, stop_at_s: float) -> list[Mixed]:
        """Up to ``keep`` of the best optima found, best first.

        Args:
            programs: about so many are solved for subsets, and twice as many in all, shifted boundaries included.
            keep: most that are returned.
            stop_at_s: none is begun after this time.thread_time().
        """
        now = None if self._parent is None else self._first(self._parent)
        if now is not None:
            now = self._settled(now, lambda unit: self._subsets[unit], programs, stop_at_s)
            self._settled(now, self._shifted, 2 * programs, stop_at_s)
        found = [mix for mix in self._seen.values() if mix is not None]
        return sorted(found, key=lambda mix: mix.energy_j)[:keep]

    def _first(self, parent: Mixed) -> Mixed | None:
        weight_j = self._weights(parent)
        self._chosen = {unit: own[int(self._values(weight_j, unit, own).argmin())] for unit, own in self._subsets.items()}
        return self._solved(self._chosen, None)

    def _settled(self, now: Mixed, others: Callable[[int], Sequence[Cuts]], programs: int, stop_at_s: float) -> Mixed:
        """The optimum once no unit gains by other boundaries, or so many programs have been solved."""
        while True:
            before = now
            for unit in self.space.units:
                if len(self._seen) >= programs or time.thread_time() > stop_at_s:
                    return now
                now = self._with_others(now, unit, others(unit))
            if now is before:
                return now

    def _with_others(self, now: Mixed, unit: int, others: Sequence[Cuts]) -> Mixed:
        """The best of a few other choices for one unit, if it is better."""
        least_j = SMALLEST * abs(self.space.problem.baseline_energy_j)
        ranked = np.argsort(self._values(self._weights(now), unit, others), kind="stable")[: TRIED + 1].tolist()
        held, best = self._chosen[unit], now
        for cuts in (others[index] for index in ranked):
            mix = self._solved(self._chosen | {unit: cuts}, now) if cuts != held else None
            if mix is not None and mix.energy_j < best.energy_j - least_j:
                best, self._chosen = mix, self._chosen | {unit: cuts}
        return best

    def _shifted(self, unit: int) -> list[Cuts]:
        """The unit's boundaries with one of them shifted."""
        own, length = self._chosen[unit], len(self.space.members[unit])
        moved = [(index, (cut + shift) % length) for index, cut in enumerate(own) for shift in SHIFTS]
        return [tuple(sorted((*own[:index], cut, *own[index + 1 :]))) for index, cut in moved if cut not in own]

    def _solved(self, chosen: dict[int, Cuts], near: Mixed | None) -> Mixed | None:
        key = tuple(chosen.values())
        if key not in self._seen:
            self._seen[key] = mixed(self.space.problem, self._ties(chosen), near)
        return self._seen[key]

    def _ties(self, cuts: Mapping[int, Cuts]) -> Ties:
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

    def _values(self, weight_j: FloatArray, unit: int, choices: Sequence[Cuts]) -> FloatArray:
        """(choices,) cost of the cheapest clock for every segment."""
        own = weight_j[self.space.members[unit]]
        total = np.concatenate([np.zeros((1, own.shape[1])), np.cumsum(np.concatenate([own, own]), axis=0)])

        def cost(begins: Cuts) -> float:
            ends = [*begins[1:], begins[0] + len(own)] if begins else [len(own)]
            return float(sum((total[end] - total[begin]).min() for begin, end in zip(begins or (0,), ends, strict=True)))

        return np.array([cost(begins) for begins in choices])


def rounded(space: Space, mix: Mixed, polish: Polish) -> IntArray | None:
    """(n,) clock columns in time: the best of several roundings of a mix, polished; None if none can be brought in time."""
    plans: list[IntArray] = []
    for part in ROUNDINGS:
        columns = np.clip(np.floor(mix.column + part), 0, space.clocks - 1).astype(np.int64)
        in_time = sped_up(space.problem, mix.ties, columns)
        if in_time is not None:
            plans.append(mix.ties.clocks(in_time))
    return polish.polished(min(plans, key=polish.energy_j)) if plans else None
