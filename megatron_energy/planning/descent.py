"""Descent to a good few-switch plan: smoothed, priced, repeated.

One *round* starts from a plan and lowers, step by step, the smoothing of the iteration's length. At each smoothing it repeats: price the
operations, collect candidates (:mod:`megatron_energy.planning.moves`), evaluate them all at once, take those that lower::

    effective energy + horizon power x smooth length + penalty x price of time x max(0, smooth length - deadline)

A round ends with a repair, if the plan is late, and a polish, which takes only candidates that keep the deadline exactly.
Rounds differ in penalty, emphasis on time and reluctance to change, drawn from a seeded generator: same problem, same plan.
The price follows the outcome: up when a round ended late, down when it ended early.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.clock_program import best_clocks
from megatron_energy.planning.moves import Prices, intervals, priced
from megatron_energy.planning.polish import SETTLED, Polish, best_per_unit
from megatron_energy.planning.sequences import Candidate, Space, count_switches, distinct

HOTTEST, COLDEST = 4e-3, 3e-5
"""Parts of the deadline between which smoothing is halved: from what many operations gain together to less than one clock step."""

REHEATED = (1, 2, 3)
"""Later rounds skip so many smoothings: they keep what is good about the plan that they start from."""

WARMED = (4, 5, 6)
"""The same for rounds from a plan that is nearly good."""

FRESH = 4  # every so many rounds one starts from the baseline again

STEPS = 40  # at one smoothing; most end after 5
REPAIR_SMOOTHING = 1.5e-4
COLD = 3
"""Last smoothings at which single intervals are tried besides whole sequences: prices say little about small changes before."""

INTERVALS = 30  # of each unit, in large jobs fewer
NEAR = 3e-3
"""Plans that use at most so much more than the best of all rounds, as a part of its energy, are polished."""

FROM_BEST = 0.3
"""Part of the rounds that begin at the best plan."""

RESERVED = (0, 0, 2)
"""Switches that rounds leave to single intervals, which can mix two neighbouring clocks: prices alone never do."""

REFINEMENTS = 2
"""Of one plan, each from what the one before found, as long as that is the best; in large jobs there is time for one."""

LARGE = 2000  # vertices


@dataclass(frozen=True)
class Knobs:
    """How one round weighs things: drawn anew for each."""

    penalty: float
    emphases: tuple[float, ...]
    proximities: tuple[float, ...]
    from_best: bool
    skipped: int
    reserved: int  # switches that whole sequences leave to single intervals


@dataclass
class Incumbent:
    """The best plan that keeps the deadline, and its energy (one GPU per unit)."""

    state: IntArray
    energy_j: float

    def offer(self, state: IntArray, energy_j: float) -> None:
        """Take a plan that keeps the deadline if it uses less."""
        if energy_j < self.energy_j - 1e-9 * abs(self.energy_j):
            self.state, self.energy_j = state.copy(), energy_j


class Descent:
    """The search for one problem; ``run`` may be called again to go on.

    Args:
        space: the sequences to choose from.
        deadline_price_w: J that one second more until the deadline is worth, from the bound.
        seed: of the generator; same seed, same plan.
    """

    def __init__(self, space: Space, deadline_price_w: float, seed: int = 0) -> None:
        self.space = space
        self.deadline_s = space.problem.deadline_s
        self.first_price_w = self.price_w = max(deadline_price_w, 0.0) + max(space.problem.horizon_power_w, 1e-6)
        self.settled_j = SETTLED * abs(space.problem.baseline_energy_j)
        self.smoothings_s = _smoothings(space)
        self.rng = np.random.default_rng(seed)
        self.state = space.baseline()
        space.price_raises(self.state)
        self.best = Incumbent(self.state, self._energy(self.state))
        self.polish = Polish(space, 1.2 * self.price_w)
        self.latest: Incumbent | None = None
        self.unrefined_j = self.best.energy_j  # of the best plan before refinement
        self.warm = False
        self.rounds = 0

    def run(self, rounds: int, stop_at_s: float) -> bool:
        """Do so many rounds, none begun after ``stop_at_s`` (time.thread_time); False if time ran out first."""
        for _ in range(rounds):
            if time.thread_time() > stop_at_s:
                return False
            self._round()
        return True

    def refine(self, nodes: int, stop_at_s: float) -> bool:
        """Choose all clocks of the best plan of the rounds since the last time anew; False if time ran out."""
        if self.latest is None:
            return True
        state, energy_j, self.latest = self.latest.state, self.latest.energy_j, None
        for _ in range(REFINEMENTS if len(state) < LARGE else 1):
            left_s = stop_at_s - time.thread_time()
            if left_s <= 0:
                return False
            found, enough = best_clocks(self.space, state, nodes, left_s)
            state, before_j = self.polish.polished(found), energy_j
            energy_j = self._energy(state)
            self.best.offer(state, energy_j)
            if not enough:
                return False
            if energy_j > min(before_j - self.settled_j, self.best.energy_j):
                break
        return True

    def start_from(self, state: IntArray) -> None:
        """Begin the next round there."""
        self.state = state.copy()

    def go_on_from(self, state: IntArray, *, warm: bool) -> None:
        """Begin the next round at a plan in time, polished; ``warm``: all further rounds stay close to the plan that they begin at."""
        state = self.polish.polished(state)
        self._keep(state)
        self.start_from(state)
        if warm:
            self.warm, self.rounds = True, max(self.rounds, 1)

    def offer(self, state: IntArray) -> None:
        """Be no worse than this plan, if it keeps the deadline and the number of switches."""
        space = self.space
        allowed = np.minimum(state, space.clocks - 1)  # lower clocks save nothing
        switches = max((count_switches(allowed[space.members[unit]]) for unit in space.units), default=0)
        if switches <= space.switches and space.problem.iteration_s(allowed) <= self.deadline_s:
            self.best.offer(allowed, self._energy(allowed))

    def _round(self) -> None:
        knobs = self._knobs()
        self.rounds += 1
        if knobs.from_best:
            self.state = self.best.state.copy()
        fresh = self.rounds % FRESH == 1 and not self.warm
        if fresh:
            self.state = self.space.baseline()
        for tau_s in self.smoothings_s[0 if fresh else knobs.skipped :]:
            self._settle(tau_s, knobs)
        late = not self.space.problem.meets_deadline(self._length())
        factor = 1.15 if late else 0.97
        self.price_w = float(np.clip(self.price_w * factor, 0.5 * self.first_price_w, 6 * self.first_price_w))
        in_time = self._repaired(knobs) if late else self.state
        if in_time is not None and self._energy(in_time) <= self.unrefined_j + NEAR * abs(self.unrefined_j):
            self.state = self.polish.polished(in_time)
            self._keep(self.state)
        self._renew_raise_costs()

    def _keep(self, state: IntArray) -> None:
        energy_j = self._energy(state)
        self.best.offer(state, energy_j)
        if self.latest is None:
            self.latest = Incumbent(state, energy_j)
        self.latest.offer(state, energy_j)
        self.unrefined_j = min(self.unrefined_j, energy_j)

    def _knobs(self) -> Knobs:
        if self.rounds == 0:
            return Knobs(1.5, (1.0, 2.0), (0.4, 2.0), False, 0, 0)

        def between(low: float, high: float) -> float:
            return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

        from_best = bool(self.rng.random() < FROM_BEST)
        return Knobs(
            penalty=between(1.0, 1.7),
            emphases=(between(0.8, 1.2), between(1.2, 2.0), between(2.0, 4.0)),
            proximities=(between(0.2, 1.0), between(1.0, 6.0)),
            from_best=from_best,
            skipped=int(self.rng.choice(WARMED if self.warm or from_best else REHEATED)),
            reserved=int(self.rng.choice(RESERVED)),
        )

    def _settle(self, tau_s: float, knobs: Knobs) -> None:
        """Improve at one smoothing until nothing does."""
        cold = tau_s <= self.smoothings_s[-COLD:][0]
        for _ in range(STEPS):
            prices, length_s = self._prices(tau_s)
            found = priced(self.space, self.state, prices, knobs.emphases, knobs.proximities, self.rng, knobs.reserved)
            if cold:
                found += intervals(self.space, self.state, prices, min(INTERVALS, self.polish.count // 4))
            if not self._step(found, tau_s, length_s, knobs.penalty):
                return

    def _prices(self, tau_s: float) -> tuple[Prices, float]:
        length_s, share = self.space.problem.paths.prices(self.space.durations(self.state), tau_s)
        return Prices(share, self.price_w, tau_s), length_s

    def _length(self) -> float:
        return self.space.problem.iteration_s(self.state)

    def _energy(self, state: IntArray) -> float:
        return self.space.problem.energy_j(self.space.cost(state), self.space.problem.iteration_s(state))

    def _horizon_j(self, length_s: FloatArray | float) -> FloatArray:
        problem = self.space.problem
        return problem.horizon_power_w * np.maximum(length_s, problem.earliest_horizon_s)

    def _time_j(self, length_s: FloatArray | float, penalty: float) -> FloatArray:
        """What an iteration's length costs: the energy of waiting until its end, and a penalty for being late."""
        return self._horizon_j(length_s) + penalty * self.price_w * np.maximum(0.0, np.asarray(length_s) - self.deadline_s)

    def _step(self, found: Sequence[Candidate], tau_s: float, length_s: float, penalty: float) -> bool:
        """Take the best candidates of different units together; False if none is worth it."""
        candidates = distinct(found, self.state, self.space.members)
        if not candidates:
            return False
        durations, gain = self.space.trials(self.state, candidates)
        paths, before = self.space.problem.paths, self._time_j(length_s, penalty)
        score = gain + self._time_j(paths.smooth(durations, tau_s), penalty) - before
        self._note(candidates, durations, gain)
        if score.min() > -self.settled_j:
            return False
        ranked = best_per_unit(candidates, score)
        together = self.space.accumulated(self.state, candidates, durations, ranked)
        combined = np.cumsum(gain[ranked]) + self._time_j(paths.smooth(together, tau_s), penalty) - before
        self.state = self.space.apply(self.state, [candidates[i] for i in ranked[: int(combined.argmin()) + 1]])
        return True

    def _note(self, candidates: Sequence[Candidate], durations: FloatArray, gain: FloatArray) -> None:
        """Keep the cheapest candidate that meets the deadline, if it beats the incumbent."""
        here, least_s = self.space.cost(self.state), self._horizon_j(self.space.problem.earliest_horizon_s)
        promising = np.flatnonzero(here + gain + least_s < self.best.energy_j)
        if not len(promising):
            return
        length_s = makespans(self.space.problem.graph, durations[:, promising])
        energy_j = np.where(length_s <= self.deadline_s, here + gain[promising] + self._horizon_j(length_s), np.inf)
        index = int(energy_j.argmin())
        if np.isfinite(energy_j[index]):
            self.best.offer(self.space.apply(self.state, [candidates[int(promising[index])]]), float(energy_j[index]))

    def _repaired(self, knobs: Knobs) -> IntArray | None:
        """The plan brought in time with stronger and stronger emphasis on time; None if that fails."""
        tau_s = REPAIR_SMOOTHING * self.deadline_s
        for power in range(1, 13):
            prices, length_s = self._prices(tau_s)
            found = priced(self.space, self.state, prices, tuple(e * 1.3**power for e in knobs.emphases), knobs.proximities, self.rng)
            self._step(found, tau_s, length_s, 10.0)
            if self._length() <= self.deadline_s:
                return self.state
        return None

    def _renew_raise_costs(self) -> None:
        """Early raises cost what runs before them in the best plan."""
        if self.space.lead_s > 0:
            self.space.price_raises(self.best.state)
            self.best.energy_j = self._energy(self.best.state)


def _smoothings(space: Space) -> list[float]:
    """Seconds, halved from level to level. In small problems one clock step of an operation is the larger measure."""
    deadline_s = space.problem.deadline_s
    steps_s = np.abs(np.diff(space.time_s, axis=1)).max(initial=0.0)
    hottest_s = max(HOTTEST * deadline_s, float(steps_s))
    count = 1 + max(0, math.ceil(math.log2(hottest_s / (COLDEST * deadline_s))))
    return [hottest_s / 2**level for level in range(count)]
