"""The default policy: few switches per GPU, real clocks, the deadline kept exactly.

The search (:mod:`megatron_energy.planning.descent`) starts from the price of the deadline that the bound gives and from a plan made of its
prices (:mod:`megatron_energy.planning.priced_start`). Every few rounds the clocks of the best plan are chosen anew, all together
(:mod:`megatron_energy.planning.clock_program`). Where few switches are allowed, the search goes on from a plan with more of them, thinned
out (:mod:`megatron_energy.planning.thinning`). With high effort, column generation (:mod:`megatron_energy.planning.columns`) proves after
the first rounds how much so few switches can save, and further rounds begin at its mix.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.columns import limit
from megatron_energy.planning.descent import Descent
from megatron_energy.planning.economy import economise
from megatron_energy.planning.priced_start import priced_start
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space
from megatron_energy.planning.thinning import thinned


@dataclass(frozen=True)
class Effort:
    """How long to search. Work is counted, not time, so that the same search finds the same plan on any machine.

    Attributes:
        rounds: of the descent.
        time_s: a safety net far above what the search takes, in CPU seconds of the thread, since training may leave it little time: no
            round begins later.
        proof_rounds: of column generation, which proves the limit.
        proof_s: its safety net.
        nodes: of branch and bound, by which all clocks of the best plan of every few rounds are chosen anew; 0: not at all.
        rounds_after: most rounds where the descent goes on from a plan thinned out, which is nearly good.
    """

    rounds: int
    time_s: float
    proof_rounds: int = 0
    proof_s: float = 0.0
    nodes: int = 0
    rounds_after: int = 3

    def sized(self, vertices: int) -> "Effort":
        """The same for a graph of so many vertices: fewer rounds where each takes longer."""
        if not self.nodes:
            return self
        turns = max(2 if vertices <= MEDIUM else 1, round(self.rounds / TURN * min(1.0, SMALL / max(vertices, 1))))
        turns = min(turns, -(-self.rounds // TURN))
        proof_rounds = round(self.proof_rounds * min(1.0, PROVEN / max(vertices, 1)))
        return replace(self, rounds=turns * TURN, nodes=self.nodes if vertices <= LARGEST else 0, proof_rounds=proof_rounds)


TURN = 3
"""Rounds after which the best plan's clocks are chosen anew."""

FIRST = 21
"""Rounds before column generation proves a limit. Per so many, or a part of them, the search with more switches takes a turn."""

SMALL = 220
"""Vertices up to which all rounds are done, and there is time for more."""

AFRESH = 6
"""Those: away from the plan thinned out, in whose making early raises count for little."""

MEDIUM = 2048
"""Vertices up to which there is time for a second try."""

LARGE = 1500
"""Vertices from which on all rounds begin close to the plan made of the bound's prices: there is time for a few only."""

PROVEN = 512
"""Vertices up to which column generation does all its rounds."""

FEWEST, ENOUGH = 2, 16
"""From the first number of switches on and below the second, a search begins with a plan with more, found in little time: there prices
alone lead near the best plan, with fewer they do not."""

MANY, MORE = 12, 4
"""Switches of that plan, at least, and how many more than allowed."""

NUMBERS = 40_000
"""Vertices times units above which thinning takes too long: every removal of a switch is judged against all others."""

LARGEST = 4096
"""Vertices above which branch and bound takes too long."""

EFFORTS = {"default": Effort(21, 120.0, nodes=1), "high": Effort(210, 900.0, 200, 300.0, nodes=50, rounds_after=105)}


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        clocks: (n,) clock columns that keep the deadline.
        limit_energy_j: least energy of any plan with so few switches, one GPU per unit; None: not proven.
        complete: there was time for all rounds, so that the same search finds the same plan again.
    """

    clocks: IntArray
    limit_energy_j: float | None
    complete: bool


def few_switches(
    problem: Problem,
    found: Bound,
    max_switches: int,
    effort: Effort,
    *,
    lead_s: float = 0.0,
    seed: int = 0,
    starts: Sequence[IntArray] = (),
) -> Search:
    """Search for the best plan with at most ``max_switches`` clock changes per unit, counted cyclically.

    Args:
        problem: what is to be planned.
        found: its bound.
        max_switches: 0 is one clock per unit; 1 equals 0.
        effort: how long.
        lead_s: how early raises will be requested; the search counts what that costs.
        seed: same seed, same plan.
        starts: (n,) clock columns of plans to be no worse than; those that miss the deadline or switch more often are ignored.
    """
    max_switches = min(max_switches, max(map(len, problem.graph.chains), default=0))  # a GPU has no more than it has operations
    space = Space(problem, max_switches, lead_s)
    if not space.units or space.clocks == 1 or problem.deadline_s <= 0:  # nothing to choose
        return Search(problem.baseline_clocks, None, True)
    effort = effort.sized(len(problem.graph.vertices))
    large = len(problem.graph.vertices) >= LARGE
    stop_at_s = time.thread_time() + effort.time_s
    descent = Descent(space, found.deadline_price_w, seed)
    for state in starts:
        descent.offer(state)
    thin = effort.nodes and FEWEST <= max_switches < ENOUGH and len(problem.graph.vertices) * len(space.units) <= NUMBERS
    if thin:
        plan = _from_more(problem, found, max_switches, effort, lead_s=lead_s, seed=seed)
        in_time = problem.meets_deadline(problem.iteration_s(plan))
        descent.go_on_from(plan if in_time else priced_start(space, found), warm=True)
        effort = replace(effort, rounds=min(effort.rounds, effort.rounds_after))
    elif effort.rounds:
        descent.go_on_from(priced_start(space, found), warm=large)
    if effort.proof_rounds:
        return _with_proof(descent, found, effort, stop_at_s, large=large)
    complete = _searched(descent, effort, effort.rounds, stop_at_s)
    if thin and len(problem.graph.vertices) <= SMALL:
        descent.warm = False
        descent.go_on_from(priced_start(space, found), warm=False)
        complete &= _searched(descent, effort, AFRESH, stop_at_s)
    return Search(economise(space, descent.best.state), None, complete)


def _with_proof(descent: Descent, found: Bound, effort: Effort, stop_at_s: float, *, large: bool) -> Search:
    """Some rounds, the proof of the limit, and the other rounds, from where the proof's mix leads."""
    space, first = descent.space, min(max(effort.rounds - TURN, 1), FIRST)
    complete = _searched(descent, effort, first, stop_at_s)
    proof = limit(space, found, [space.baseline(), descent.best.state], effort.proof_rounds, time.thread_time() + effort.proof_s)
    descent.start_from(proof.state)
    descent.warm = large
    complete &= _searched(descent, effort, effort.rounds - first, stop_at_s + effort.proof_s)
    return Search(economise(space, descent.best.state), proof.energy_j, complete and proof.complete)


def _from_more(problem: Problem, found: Bound, max_switches: int, effort: Effort, *, lead_s: float, seed: int) -> IntArray:
    """A plan with more switches, thinned out."""
    more, stop_at_s = max(MANY, max_switches + MORE), time.thread_time() + effort.time_s
    space = Space(problem, more, lead_s)
    descent = Descent(space, found.deadline_price_w, seed)
    descent.go_on_from(priced_start(space, found), warm=len(problem.graph.vertices) >= LARGE)
    descent.run(TURN * -(-effort.rounds // FIRST), stop_at_s)
    return thinned(problem, found, descent.best.state, more, max_switches, lead_s, stop_at_s)


def _searched(descent: Descent, effort: Effort, rounds: int, stop_at_s: float) -> bool:
    """Rounds of the descent, each few of them refined; False if time ran out."""
    for done in range(0, rounds, TURN):
        if not descent.run(min(TURN, rounds - done), stop_at_s):
            return False
        if effort.nodes and not descent.refine(effort.nodes, stop_at_s):
            return False
    return True
