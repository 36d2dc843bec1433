"""The reference with a clock per operation: the bound rounded to real clocks, then improved while the deadline holds.

It takes hundreds of switches per iteration and cannot be executed on real GPUs; it shows what real clocks alone cost against the bound.

The bound is rounded in two ways: each operation by itself to the next clock that is no slower, and along the iteration, where an operation
may use what the ones before it left over. Then single clocks are changed, and clocks of two neighbours are exchanged, one slower and the
other faster (:mod:`megatron_energy.planning.slack`), as long as that saves energy.

Further plans come from searches along the iteration with many partial plans at once (:mod:`megatron_energy.planning.beam`). The best of all
is then searched anew window by window, the rest of the iteration as it is: by the same search, and by branch and bound
(:mod:`megatron_energy.planning.window_program`). Searches count work, not time: equal input, equal plan.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.pipeline.replay import makespans, replay
from megatron_energy.planning.beam import Beam
from megatron_energy.planning.bound import Bound
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem
from megatron_energy.planning.slack import Exchange, exchanges, spare_s
from megatron_energy.planning.window_program import best_in_window

ROUNDING_S = 1e-9  # durations of the linear program may miss a clock's time by this much
TRIALS = 64
ROUNDS = 2000

ENOUGH, CLOSE = 6e-4, 9e-4
"""Parts of the baseline's energy: a plan that is closer to the bound than the first is not searched for a better one, and one closer than
the second not by branch and bound."""

WORK = 5_000_000
"""Vertices x partial plans of a search: a few seconds."""

MOST, FEWEST = 6000, 64
"""Partial plans of a search at a time."""

CAUTIONS = (0.2, 0.3, 0.5, 0.15)
"""Parts of the waiting that unlike delays may cause, counted in advance: a search with each, in this order."""

WINDOW = 64  # vertices
WINDOW_CAUTION = 0.1

PASSES = ((128, 4), (96, 5))
"""Over the iteration by branch and bound: vertices of a window, each overlapping half of the one before, and clocks offered to each."""

NODE_WORK = 8000
"""What a node of branch and bound counts as, in vertices x partial plans: a pass may take as much work as a search."""

FEWEST_NODES, MOST_NODES = 50, 200
"""Of one window; the first node takes as long as dozens of others, so that fewer are not begun. Large graphs have too many windows."""

NET_S = 6.0
"""CPU seconds: a safety net for one window, far above what it takes."""

BoolArray = npt.NDArray[np.bool_]


def per_operation(problem: Problem, found: Bound, work: int = WORK) -> IntArray:
    """(n,) clock columns, one per operation, that keep the deadline exactly.

    Args:
        problem: what is to be planned.
        found: its bound.
        work: vertices x partial plans of a search; 0: none, rounding and single changes only, which take a small part of the time.
    """
    beam = Beam(problem, found)
    roundings = (_rounded(problem, found.duration_s), _rounded_along(problem, found.duration_s))
    starts = [_improved(problem, _in_time(problem, np.where(beam.chosen, r, 0)), beam.chosen) for r in roundings]
    best = _settled(problem, min(starts, key=_energy_of(problem)), beam.chosen)
    return _searched(problem, found, beam, best, work) if work else best


def _searched(problem: Problem, found: Bound, beam: Beam, best: IntArray, work: int) -> IntArray:
    """A plan no worse than ``best``; the search ends where the bound is close enough."""
    energy_of = _energy_of(problem)
    enough_j, close_j = (found.energy_j + part * abs(problem.baseline_energy_j) for part in (ENOUGH, CLOSE))
    width = int(np.clip(work // max(len(best), 1), FEWEST, MOST))
    for caution in CAUTIONS:
        if energy_of(best) <= enough_j:
            return best
        other = beam.search(best, beam.chosen, width, caution)
        if other is not None:
            best = min(best, _settled(problem, other, beam.chosen), key=energy_of)
    if energy_of(best) > enough_j:
        best = _refined(problem, beam, best, max(1, width // 2))
    for size, offered in PASSES:
        best = _programmed(problem, beam, best, close_j, size, offered, work // NODE_WORK)
    return best


def _energy_of(problem: Problem) -> Callable[[IntArray], float]:
    return lambda clocks: problem.energy_j(problem.effective_j(clocks), problem.iteration_s(clocks))


def _refined(problem: Problem, beam: Beam, clocks: IntArray, width: int) -> IntArray:
    """Windows of the iteration searched anew, one after the other, each overlapping half of the one before."""
    energy_of = _energy_of(problem)
    for first in range(0, len(clocks), WINDOW // 2):
        free = np.zeros(len(clocks), dtype=bool)
        free[beam.order[first : first + WINDOW]] = True
        other = beam.search(clocks, free, width, WINDOW_CAUTION)
        if other is not None and energy_of(other) < energy_of(clocks):
            clocks = other
    return _settled(problem, clocks, beam.chosen)


def _programmed(problem: Problem, beam: Beam, clocks: IntArray, close_j: float, size: int, offered: int, nodes: int) -> IntArray:
    """The clocks of one window after the other chosen by branch and bound, until the plan is close to the bound."""
    energy_of = _energy_of(problem)
    firsts = range(0, max(1, len(clocks) - size // 2), size // 2)
    nodes = min(nodes // len(firsts), MOST_NODES)
    if nodes < FEWEST_NODES:
        return clocks
    for first in firsts:
        if energy_of(clocks) <= close_j:
            return clocks
        window = beam.order[first : first + size]
        columns = np.where(beam.chosen[window, np.newaxis], beam.columns[window, :offered], clocks[window, np.newaxis])
        other = best_in_window(problem, clocks, window, columns, nodes=nodes, time_limit_s=NET_S)
        if other is not None and energy_of(other) < energy_of(clocks):
            clocks = other
    return _settled(problem, clocks, beam.chosen)


def _settled(problem: Problem, clocks: IntArray, chosen: BoolArray) -> IntArray:
    """Single clocks changed and clocks of neighbours exchanged until neither saves anything."""
    clocks = _improved(problem, clocks, chosen)
    for _ in range(ROUNDS):
        better = _exchanged(problem, clocks, chosen)
        if better is None:
            break
        clocks = _improved(problem, better, chosen)
    return clocks


def _improved(problem: Problem, clocks: IntArray, chosen: BoolArray) -> IntArray:
    """Single clocks changed until no change saves anything."""
    for _ in range(ROUNDS):
        better = _changed(problem, clocks, chosen)
        if better is None:
            break
        clocks = better
    return clocks


def _rounded(problem: Problem, limit_s: FloatArray) -> IntArray:
    """Per vertex the clock with the least effective energy that takes no longer than ``limit_s``."""
    vertices = np.arange(len(limit_s))
    return _cheapest_within(problem, vertices, limit_s)


def _rounded_along(problem: Problem, duration_s: FloatArray) -> IntArray:
    """Per vertex the clock with the least effective energy that ends no later than it would with these durations.

    Whoever was faster than its duration leaves the rest to those after it, as far as they wait for nobody else.
    """
    graph, count = problem.graph, len(duration_s)
    due_s, end_s = replay(graph, duration_s).end_s, np.zeros(count + 1)
    clocks = np.zeros(count, dtype=np.int64)
    for level in graph.levels.levels:
        ready_s = end_s[level.before]
        if level.lag_s is not None:
            ready_s = ready_s + level.lag_s[:, :, 0]
        start_s, vertices = ready_s.max(axis=0), level.vertices
        clocks[vertices] = _cheapest_within(problem, vertices, due_s[vertices] - start_s)
        end_s[vertices] = start_s + problem.tables.time_s[vertices, clocks[vertices]]
    return clocks


def _cheapest_within(problem: Problem, vertices: IntArray, limit_s: FloatArray) -> IntArray:
    """(k,) columns of (k,) vertices: the cheapest that takes no longer than (k,) ``limit_s``, else the fastest."""
    time_s = problem.tables.time_s[vertices]
    allowed = time_s <= limit_s[:, np.newaxis] + ROUNDING_S
    allowed[np.arange(len(time_s)), time_s.argmin(axis=1)] = True
    return np.asarray(np.where(allowed, problem.cost_j[vertices], np.inf).argmin(axis=1), dtype=np.int64)


def _in_time(problem: Problem, clocks: IntArray) -> IntArray:
    """Clocks raised along late paths until the deadline holds: needed only where rounding was the wrong way."""
    time_s, n = problem.tables.time_s, len(clocks)
    while not problem.meets_deadline(problem.iteration_s(clocks)):
        spare = spare_s(problem, clocks)
        faster = np.where(time_s < problem.durations(clocks)[:, np.newaxis], time_s, -np.inf)
        column = faster.argmax(axis=1)
        late = (spare < 0) & np.isfinite(faster[np.arange(n), column])
        if not late.any():  # every late operation is at its fastest: the baseline keeps the deadline by definition
            return problem.baseline_clocks
        clocks = np.where(late, column, clocks)
    return clocks


def _changed(problem: Problem, clocks: IntArray, chosen: BoolArray) -> IntArray | None:
    """As many of the best single changes together as keep the deadline; None if no change saves anything."""
    rows = np.arange(len(clocks))
    fits = problem.tables.time_s <= (problem.durations(clocks) + np.maximum(spare_s(problem, clocks), 0.0))[:, np.newaxis]
    gain = np.where(fits & chosen[:, np.newaxis], problem.cost_j - problem.cost_j[rows, clocks][:, np.newaxis], 0.0)
    column = gain.argmin(axis=1)
    best = gain[rows, column]
    ranked = np.argsort(best, kind="stable")[:TRIALS]
    ranked = ranked[best[ranked] < -_least_j(problem)]
    return _taken(problem, clocks, ranked[:, np.newaxis], column[ranked][:, np.newaxis])


def _exchanged(problem: Problem, clocks: IntArray, chosen: BoolArray) -> IntArray | None:
    """The same with exchanges between neighbours."""
    found: Exchange = exchanges(problem, clocks, chosen)
    kept: list[int] = []
    touched = np.zeros(len(clocks), dtype=bool)
    for index in np.argsort(found.gain_j, kind="stable").tolist():
        if found.gain_j[index] >= -_least_j(problem) or len(kept) == TRIALS:
            break
        if not touched[found.vertices[index]].any():
            touched[found.vertices[index]] = True
            kept.append(index)
    return _taken(problem, clocks, found.vertices[kept], found.columns[kept])


def _least_j(problem: Problem) -> float:
    """Gains below this count for nothing."""
    return 1e-9 * abs(problem.baseline_energy_j)


def _taken(problem: Problem, clocks: IntArray, vertices: IntArray, columns: IntArray) -> IntArray | None:
    """The longest list of (k, j) changes, best first, that keeps the deadline; None if not even the first does."""
    if not len(vertices):
        return None
    durations = np.repeat(problem.durations(clocks)[:, np.newaxis], len(vertices), axis=1)
    for position, (changed, new) in enumerate(zip(vertices, columns, strict=True)):
        durations[changed, position:] = problem.tables.time_s[changed, new][:, np.newaxis]
    kept = np.flatnonzero(makespans(problem.graph, durations) <= problem.deadline_s * (1 + TIME_TOLERANCE))
    if not len(kept):
        return None
    better: IntArray = clocks.copy()
    taken = vertices[: int(kept.max()) + 1]
    better[taken] = columns[: len(taken)]
    return better
