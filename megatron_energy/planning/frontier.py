"""The frontier: the least energy at every iteration time that is worth having, and a plan for each point.

It reaches from the fastest iteration that any clocks allow to the one that uses the least energy; with a straggler from the straggler's
end, as nobody gains from being earlier. Between them the least energy falls and is convex. One linear program gives it at one time after
the other, each from where it stands (:class:`megatron_energy.planning.bound.BoundProgram`), and a planner turns each optimum into real
clocks. Points lie evenly along the curve: the next one halves the interval with the largest part of the whole time and energy.

GPUs that have to wait for a straggler anyway have use for even slower plans; such points are kept apart.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import Bound, BoundProgram
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.segments import Effort, few_switches

Planner: TypeAlias = Callable[[Problem, Bound, Sequence[IntArray]], IntArray]
"""(problem with its deadline, its bound, (n,) clock columns of plans that are in time) -> (n,) clock columns of a plan in time."""

ROUNDS, FEWER = 4, 1
"""Of a search for a plan with few switches: there are many of them, and neighbours start from each other."""

LARGE = 1500
"""Vertices from which on the further rounds gain nothing and take seconds."""

NET_S = 120.0
"""A safety net far above what the rounds take: searches end by counted work."""

SAMPLES_PER_POINT = 3
"""Real clocks may make a plan that a faster one beats; so many more are tried for it."""

NARROWEST = 1e-7
"""Part of the time or of the energy below which an interval is not halved."""


@dataclass(frozen=True)
class Point:
    """One deadline. Energies count one GPU per unit.

    Attributes:
        deadline_s: when the iteration has to be over.
        bound_j: no plan in time uses less.
        price_w: J that one second more would save.
        clocks: (n,) clock columns of a plan in time.
        iteration_s: its replayed time.
        effective_j: its energy without what the GPUs would draw by waiting throughout; see :mod:`megatron_energy.planning.problem`.
        energy_j: its energy until its own end (with a straggler: until the straggler's end).
    """

    deadline_s: float
    bound_j: float
    price_w: float
    clocks: IntArray
    iteration_s: float
    effective_j: float
    energy_j: float


@dataclass(frozen=True)
class Frontier:
    """Points in the order of time; each takes longer than the one before it and uses less.

    Attributes:
        problem: what it is the frontier of.
        points: at least one, from the fastest to the least energy.
        for_stragglers: slower ones still, for who waits for a straggler; empty unless asked for.
        gap_j: between two neighbouring deadlines the least energy is below the line from bound to bound by at most this much: proven.
    """

    problem: Problem
    points: tuple[Point, ...]
    for_stragglers: tuple[Point, ...]
    gap_j: float

    def at(self, deadline_s: float) -> Point:
        """The point with the least energy whose plan is over by ``deadline_s``.

        Raises:
            UserError: no plan is that fast.
        """
        return self._last_in_time(self.points, deadline_s)

    def until(self, straggler_s: float) -> Point:
        """The point with the least energy for who has to wait until a straggler's end.

        Raises:
            UserError: no plan is that fast.
        """
        return self._last_in_time((*self.points, *self.for_stragglers), straggler_s)

    def _last_in_time(self, points: tuple[Point, ...], deadline_s: float) -> Point:
        count = bisect_right(points, deadline_s * (1 + TIME_TOLERANCE), key=lambda point: point.iteration_s)
        if count == 0:
            raise UserError(f"no plan ends within {deadline_s:g} s: the fastest takes {points[0].iteration_s:g} s")
        return points[count - 1]


def frontier(
    problem: Problem,
    count: int = 50,
    *,
    planner: Planner | None = None,
    straggler_count: int = 0,
    program: BoundProgram | None = None,
) -> Frontier:
    """Compute the frontier.

    Args:
        problem: what is to be planned; its deadline does not matter, its straggler does.
        count: points wanted. There are fewer where real clocks do not give as many different plans.
        planner: makes the plan of each point; None: a clock per operation.
        straggler_count: further points for who waits for a straggler, up to where no operation gains from more time.
        program: the problem's linear program, if it is at hand (:func:`megatron_energy.planning.scale.solved_program`).

    Raises:
        UserError: a count below 2.
    """
    if count < 2:
        raise UserError(f"a frontier has at least 2 points, not {count}")
    sampler = _Sampler(problem, planner or _operations, program or BoundProgram(problem))
    first = sampler.sample(sampler.fastest_s)
    last = sampler.sample(sampler.thriftiest_s)
    samples = sampler.between(first, last, count)
    further: list[Point] = []
    if straggler_count and sampler.slowest_s > last.deadline_s * (1 + NARROWEST):
        sampler.forced = True
        further = sampler.between(sampler.sample(last.deadline_s), sampler.sample(sampler.slowest_s), straggler_count + 1)
    points = _worthwhile(samples, lambda point: point.energy_j)
    everything = _worthwhile([*points, *further], lambda point: point.effective_j)
    beyond = tuple(point for point in everything if point.iteration_s > points[-1].iteration_s)
    return Frontier(problem, tuple(points), beyond, _gap_j(samples))


def _operations(problem: Problem, found: Bound, starts: Sequence[IntArray]) -> IntArray:
    return per_operation(problem, found, work=0)


def segments_planner(max_switches: int, effort: Effort | None = None) -> Planner:
    """A planner with few switches per GPU; a slower point's search is no worse than the plan of the faster point next to it.

    Args:
        max_switches: per GPU and iteration.
        effort: of each point's search; None: what :data:`ROUNDS` says.
    """

    def plan(problem: Problem, found: Bound, starts: Sequence[IntArray]) -> IntArray:
        rounds = ROUNDS if len(problem.graph.vertices) < LARGE else FEWER
        return few_switches(problem, found, max_switches, effort or Effort(rounds, NET_S), starts=starts).clocks

    return plan


class _Sampler:
    """Makes points.

    Attributes:
        fastest_s: earliest end of any clocks; with a straggler not before the straggler's.
        thriftiest_s: end of the iteration that uses the least energy.
        slowest_s: end when every operation uses as little as it can.
        forced: energy is counted until the deadline, whenever the plan ends.
    """

    def __init__(self, problem: Problem, planner: Planner, program: BoundProgram) -> None:
        self.problem = problem
        self.planner = planner
        self.program = program
        self.earliest_s = problem.earliest_horizon_s
        self.fastest_s = max(self._length_s(problem.tables.time_s.min(axis=1)), self.earliest_s)
        thrifty = np.take_along_axis(problem.tables.time_s, problem.cost_j.argmin(axis=1)[:, np.newaxis], axis=1)[:, 0]
        self.slowest_s = max(self._length_s(thrifty), self.fastest_s)
        self.forced = False
        self.thriftiest_s = max(self.program.at(self.slowest_s, self.earliest_s).iteration_s, self.fastest_s)

    def _length_s(self, duration_s: FloatArray) -> float:
        return float(makespans(self.problem.graph, duration_s[:, np.newaxis])[0])

    def sample(self, deadline_s: float, starts: Sequence[IntArray] = ()) -> Point:
        """The point at a deadline; ``starts``: plans that are in time."""
        found = self.program.at(deadline_s, deadline_s if self.forced else self.earliest_s)
        due = replace(self.problem, given_deadline_s=deadline_s)
        clocks = self.planner(due, found, starts)
        iteration_s, effective_j = due.iteration_s(clocks), due.effective_j(clocks)
        return Point(
            deadline_s=deadline_s,
            bound_j=found.energy_j - found.gap_j,
            price_w=found.deadline_price_w,
            clocks=clocks,
            iteration_s=iteration_s,
            effective_j=effective_j,
            energy_j=due.energy_j(effective_j, deadline_s if self.forced else iteration_s),
        )

    def between(self, first: Point, last: Point, count: int) -> list[Point]:
        """Samples from ``first`` to ``last``, enough for ``count`` worthwhile ones, if there are so many."""
        if last.deadline_s <= first.deadline_s * (1 + NARROWEST):
            return [first]
        samples = [first, last]
        value = _effective if self.forced else _energy
        while len(_worthwhile(samples, value)) < count and len(samples) < SAMPLES_PER_POINT * count:
            at = self._widest(samples)
            if at is None:
                break
            middle_s = (samples[at].deadline_s + samples[at + 1].deadline_s) / 2
            insort(samples, self.sample(middle_s, [samples[at].clocks]), key=lambda point: point.deadline_s)
        return samples

    def _widest(self, samples: Sequence[Point]) -> int | None:
        """The longest interval, by its parts of the range of time and of the bound's range; None if all of them are too short."""
        widths_s = np.diff([point.deadline_s for point in samples])
        falls_j = -np.diff([self._bound_effective_j(point) for point in samples])
        narrow = (widths_s < NARROWEST * samples[-1].deadline_s) | (falls_j < NARROWEST * abs(samples[0].bound_j))
        parts = np.where(narrow, 0.0, widths_s / widths_s.sum() + falls_j / max(falls_j.sum(), 1e-300))
        at = int(parts.argmax())
        return at if parts[at] > 0 else None

    def _bound_effective_j(self, point: Point) -> float:
        """The bound as it counts for points: past the least energy, waiting is nobody's choice."""
        return point.bound_j - (self.problem.horizon_power_w * point.deadline_s if self.forced else 0.0)


def _energy(point: Point) -> float:
    return point.energy_j


def _effective(point: Point) -> float:
    return point.effective_j


def _worthwhile(samples: Sequence[Point], value: Callable[[Point], float]) -> list[Point]:
    """Points, in the order of deadlines, none of which another one beats in both time and ``value``."""
    kept: list[Point] = []
    for point in samples:
        while kept and value(point) < value(kept[-1]) and point.iteration_s <= kept[-1].iteration_s:
            kept.pop()
        if not kept or value(point) < value(kept[-1]):
            kept.append(point)
    return kept


def _gap_j(samples: Sequence[Point]) -> float:
    """Largest distance, over all intervals, between the line from bound to bound and the two tangents below it."""
    gaps = [0.0]
    for left, right in pairwise(samples):
        width_s, fall_j = right.deadline_s - left.deadline_s, left.bound_j - right.bound_j
        bend_w = left.price_w - right.price_w
        if bend_w > 0:  # the tangents meet so far right of the left point
            meet_s = float(np.clip((fall_j - right.price_w * width_s) / bend_w, 0.0, width_s))
            gaps.append(left.price_w * meet_s - fall_j * meet_s / width_s)
    return max(gaps)
