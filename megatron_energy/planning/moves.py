"""Candidates for a better plan, found from the prices of time.

*Priced* candidates are whole sequences: given what a second of each operation costs on the (smooth) critical paths, dynamic
programming finds the cheapest sequence of a unit. Prices hold near the current plan only, so leaving it has a cost that grows
with the square of the change (a proximal step). *Interval* candidates change the clock of one run of operations: boundary
shifts, new clocks, merges, small splits.
"""

from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.dp import cheapest_sequences
from megatron_energy.planning.sequences import Candidate, Space, cut_positions

PRICE_FLOOR = 0.02
"""Share of paths that an operation is taken to lie on at least: a large change makes any operation critical."""

OFFSETS = np.array([-8, -5, -3, -2, -1, 0, 1, 2, 3, 5, 8])
"""Distances from present boundaries at which intervals may begin and end, in operations."""

PARTS = np.array([0.25, 0.5, 0.75])
"""And at these parts of the present segments: two neighbouring clocks in turn come close to any speed between them."""

CLOCK_STEPS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class Prices:
    """What time costs around a state.

    Attributes:
        share: (n,) share of the smooth critical paths that lead through each vertex.
        deadline_w: J that a second of delay of the whole iteration is worth.
        tau_s: smoothing: how far the shares hold.
    """

    share: FloatArray
    deadline_w: float
    tau_s: float


def priced(
    space: Space,
    state: IntArray,
    prices: Prices,
    emphases: tuple[float, ...],
    proximities: tuple[float, ...],
    rng: np.random.Generator,
    reserved: int = 0,
) -> list[Candidate]:
    """Cheapest sequences of every unit at the prices, for each emphasis on time and each reluctance to change.

    They leave ``reserved`` of the permitted switches unused.

    Where the cycle is cut open is drawn at random, mostly at a present switch: a switch is free there.
    """
    cuts = {unit: cut_positions(state[space.members[unit]]) for unit in space.units}
    cases = [
        (unit, e, p, _opening(cuts[unit], len(space.members[unit]), rng)) for unit in space.units for e in emphases for p in proximities
    ]
    order = np.stack([space.order(unit, first) for unit, _, _, first in cases])
    emphasis = np.array([e for _, e, _, _ in cases])[:, np.newaxis, np.newaxis] * prices.deadline_w
    reluctance = np.array([p for _, _, p, _ in cases])[:, np.newaxis, np.newaxis] / (2 * prices.tau_s)
    share = np.append(prices.share, 0.0)[order][:, :, np.newaxis]
    time_s = space.time_s[order]
    now_s = np.append(space.durations(state), 0.0)[order][:, :, np.newaxis]
    weight = space.cost_j[order] + emphasis * (share * time_s + reluctance * (share + PRICE_FLOOR) * (time_s - now_s) ** 2)
    raise_j = None if space.raise_j is None else space.raise_j[order]
    found = cheapest_sequences(weight, max(space.switches - reserved - 1, 0), raise_j)
    return [
        Candidate(unit, _closed(sequence[: len(space.members[unit])], first))
        for (unit, _, _, first), sequence in zip(cases, found, strict=True)
    ]


def _opening(cuts: IntArray, length: int, rng: np.random.Generator) -> int:
    if len(cuts) and rng.random() < 0.7:
        return int(cuts[rng.integers(len(cuts))])
    return int(rng.integers(length))


def _closed(sequence: IntArray, first: int) -> IntArray:
    """A sequence that begins at position ``first``, in the order of the iteration again."""
    return np.concatenate([sequence[len(sequence) - first :], sequence[: len(sequence) - first]])


def intervals(space: Space, state: IntArray, prices: Prices, count: int) -> list[Candidate]:
    """The ``count`` most promising changes of one run of operations of each unit, by prices (first order plus reluctance)."""
    found = []
    for unit in space.units:
        member = space.members[unit]
        found += _intervals_of(space, unit, state[member], _change_j(space, member, state[member], prices), count)
    return found


def _change_j(space: Space, member: IntArray, sequence: IntArray, prices: Prices) -> FloatArray:
    """(N, F) estimated change of the priced cost when one operation moves to each clock."""
    time_s, rows = space.time_s[member], np.arange(len(member))
    now_s = time_s[rows, sequence][:, np.newaxis]
    share = prices.share[member][:, np.newaxis]
    delay = share * (time_s - now_s) + (share + PRICE_FLOOR) * (time_s - now_s) ** 2 / (2 * prices.tau_s)
    cost_j = space.cost_j[member]
    return np.asarray(cost_j - cost_j[rows, sequence][:, np.newaxis] + prices.deadline_w * delay, dtype=np.float64)


def _intervals_of(space: Space, unit: int, sequence: IntArray, change_j: FloatArray, count: int) -> list[Candidate]:
    length = len(sequence)
    begin, end = _bounds(sequence)
    if not len(begin):
        return []
    left, right = sequence[begin - 1], sequence[end % length]
    steps = [sequence[begin] + step for step in CLOCK_STEPS] + [sequence[(end - 1) % length] + step for step in CLOCK_STEPS]
    clock = np.stack([left, right, *steps])
    valid = (clock >= 0) & (clock < space.clocks)
    clock = np.clip(clock, 0, space.clocks - 1)
    cut = sequence != np.roll(sequence, 1)
    before = np.concatenate([[0], np.cumsum(np.concatenate([cut, cut]))])  # cuts at positions < i
    outside = np.count_nonzero(cut) - (before[end + 1] - before[begin])
    valid &= outside + (clock != left) + (clock != right) <= space.switches
    inside = before[end] - before[begin + 1]
    valid &= (inside > 0) | (clock != sequence[begin])  # something changes
    for option in range(1, len(clock)):
        valid[option] &= (clock[:option] != clock[option]).all(axis=0)  # not the same again
    total = np.concatenate([np.zeros((1, space.clocks)), np.cumsum(np.concatenate([change_j, change_j]), axis=0)])
    score = np.where(valid, total[end, clock] - total[begin, clock], np.inf).ravel()
    best = _least(score, count)
    found = []
    for index in best[np.isfinite(score[best])].tolist():
        option, pair = divmod(index, len(begin))
        new = sequence.copy()
        new[np.arange(begin[pair], end[pair]) % length] = clock[option, pair]
        found.append(Candidate(unit, new))
    return found


def _least(score: FloatArray, count: int) -> IntArray:
    """Indices of the ``count`` least, least first; the earlier one among equals."""
    if count >= len(score):
        return np.argsort(score, kind="stable")
    limit = np.partition(score, count - 1)[count - 1]
    few = np.flatnonzero(score <= limit)
    return np.asarray(few[np.argsort(score[few], kind="stable")[:count]], dtype=np.int64)


def _bounds(sequence: IntArray) -> tuple[IntArray, IntArray]:
    """(P,) begins and ends (end > begin, up to twice the length) of intervals around present boundaries."""
    length, cuts = len(sequence), cut_positions(sequence)
    anchors = cuts if len(cuts) else np.array([0, length // 3, 2 * length // 3])
    inside = (anchors[:, np.newaxis] + np.diff(anchors, append=anchors[:1] + length)[:, np.newaxis] * PARTS).astype(np.int64)
    positions = np.unique(np.concatenate([(anchors[:, np.newaxis] + OFFSETS).ravel(), inside.ravel()]) % length)
    begin, end = (part.ravel() for part in np.meshgrid(positions, positions, indexing="ij"))
    keep = begin != end
    begin, end = begin[keep], end[keep]
    return begin, np.where(end > begin, end, end + length)
