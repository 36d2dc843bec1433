"""From segments to clock requests: raises early enough to be in force when needed, lowers at their boundary.

A request takes time until its clock is in force (the *lead*). A lower that comes late costs a little energy; a raise that comes late
costs time. So a raise is anchored to the latest transition point of the same GPU that is at least the lead before the operation
that needs it, with the remaining time as a delay; points of the previous iteration count, as iterations follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.planning.plan import Segment, TransitionRequest, UnitPlan
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import clocked_vertices

ANCHORS = ("forward", "backward", "grad-sync", "optimizer")


@dataclass(frozen=True)
class Timing:
    """When everything happens in one iteration of a plan: (n,) starts and ends in s, and the iteration's length."""

    start_s: FloatArray
    end_s: FloatArray
    period_s: float


def enforce_lead(problem: Problem, clocks: IntArray, start_s: FloatArray, period_s: float, lead_s: float) -> IntArray:
    """Clock columns without segments that are over before the raise after them has to be requested.

    Such a segment takes the raise's clock: faster than planned, never slower.

    Args:
        problem: for the graph and which vertices have a clock to choose.
        clocks: (n,) clock columns; lower columns are higher clocks.
        start_s: (n,) when each vertex starts.
        period_s: length of the iteration.
        lead_s: how early raises are requested.
    """
    result: IntArray = clocks.copy()
    if lead_s <= 0:
        return result
    for member in clocked_vertices(problem):
        while (short := _short_segment(result[member], start_s[member], period_s, lead_s)) is not None:
            positions, column = short
            result[member[positions]] = column
    return result


def _short_segment(sequence: IntArray, start_s: FloatArray, period_s: float, lead_s: float) -> tuple[IntArray, int] | None:
    """(positions of a segment shorter than the lead before a raise, the raise's column), or None."""
    cuts = [int(c) for c in np.flatnonzero(sequence != np.roll(sequence, 1))]
    for index, cut in enumerate(cuts):
        after = cuts[(index + 1) % len(cuts)]
        if sequence[after] >= sequence[cut]:
            continue  # what follows is a lower
        length_s = (start_s[after] - start_s[cut]) % period_s
        if length_s < lead_s:
            count = (after - cut) % len(sequence)
            return np.array([(cut + i) % len(sequence) for i in range(count)], dtype=np.int64), int(sequence[after])
    return None


def unit_plans(problem: Problem, clocks: IntArray, timing: Timing, lead_s: float) -> list[UnitPlan]:
    """Segments and requests of every unit of a plan (units of one replica stand for all replicas).

    Args:
        problem: for the graph and the clock grid.
        clocks: (n,) clock columns, as :func:`enforce_lead` leaves them.
        timing: of the plan's replay.
        lead_s: how early raises are requested.
    """
    graph = problem.graph
    plans = []
    for index, (unit, member) in enumerate(zip(graph.units, clocked_vertices(problem), strict=True)):
        sequence = clocks[member]
        mhz = problem.tables.clock_mhz[sequence]
        cuts = np.flatnonzero(sequence != np.roll(sequence, 1))
        starts = cuts if len(cuts) else np.zeros(1, dtype=np.int64)
        segments = tuple(_segment(graph, int(member[p]), int(mhz[p])) for p in starts)
        points = _Points(graph, graph.chains[index], timing)
        raised = [bool(mhz[p] > mhz[p - 1]) for p in cuts]
        raise_in_s = _until_raises(timing.start_s[member[cuts]], raised, timing.period_s, lead_s)
        requests = [
            replace(points.request(int(member[p]), int(mhz[p]), raised=up, lead_s=lead_s), raise_in_s=until_s)
            for p, up, until_s in zip(cuts, raised, raise_in_s, strict=True)
        ]
        plans.append(UnitPlan(unit.stage, segments, tuple(requests)))
    return plans


def _until_raises(start_s: FloatArray, raised: Sequence[bool], period_s: float, lead_s: float) -> list[float | None]:
    """Of every segment that begins with a lower: seconds until the next raise is asked for; None of the others.

    Args:
        start_s: (segments,) when they begin, in the order of the iteration.
        raised: which begin with a raise.
        period_s: length of the iteration.
        lead_s: how early raises are requested.
    """
    count, found = len(raised), list[float | None]()
    for index in range(count):
        after = next((i % count for i in range(index + 1, index + count) if raised[i % count]), None)
        known = not raised[index] and after is not None
        found.append(max(float(start_s[after] - start_s[index]) % period_s - lead_s, 0.0) if known else None)
    return found


def _segment(graph: Graph, vertex: int, clock_mhz: int) -> Segment:
    v = graph.vertices[vertex]
    return Segment(v.kind, v.chunk, v.microbatch, clock_mhz)


class _Points:
    """The transition points of one unit: begin and end of its operations, in order."""

    def __init__(self, graph: Graph, chain: IntArray, timing: Timing) -> None:
        self.graph = graph
        self.order = [int(v) for v in chain if graph.vertices[int(v)].kind in ANCHORS]
        self.timing = timing

    def request(self, vertex: int, clock_mhz: int, *, raised: bool, lead_s: float) -> TransitionRequest:
        """The request that brings a clock into force at the begin of ``vertex``."""
        if not raised or lead_s <= 0:
            return self._anchored(vertex, "begin", clock_mhz, 0.0, 0)
        due_s = float(self.timing.start_s[vertex]) - lead_s
        place = self.order.index(vertex)
        count = len(self.order)
        for back in range(1, count + 1):  # towards the past, over the iteration's begin if need be
            other = self.order[(place - back) % count]
            shift_s = self.timing.period_s if place - back < 0 else 0.0
            for edge, at_s, ahead in (
                ("end", float(self.timing.end_s[other]) - shift_s, back - 1),
                ("begin", float(self.timing.start_s[other]) - shift_s, back),
            ):
                if at_s <= due_s:
                    return self._anchored(other, edge, clock_mhz, due_s - at_s, ahead)
        return self._anchored(vertex, "begin", clock_mhz, 0.0, 0)  # the lead is longer than the iteration

    def _anchored(self, vertex: int, edge: str, clock_mhz: int, delay_s: float, ahead: int) -> TransitionRequest:
        v = self.graph.vertices[vertex]
        return TransitionRequest(v.kind, v.chunk, v.microbatch, edge, clock_mhz, delay_s, ahead)


def clock_columns(graph: Graph, clock_mhz: Sequence[int] | IntArray, units: Sequence[UnitPlan]) -> IntArray:
    """(n,) clock columns of a plan's segments on a graph.

    Raises:
        KeyError: a segment begins at an operation that the graph does not have.
        ValueError: a clock is not in ``clock_mhz``; the message is that clock.
    """
    by_stage = {u.stage: u for u in units}
    result = np.zeros(len(graph.vertices), dtype=np.int64)
    for unit, chain in zip(graph.units, graph.chains, strict=True):
        result[chain] = chain_columns(graph, chain, clock_mhz, by_stage[unit.stage])
    return result


def chain_columns(graph: Graph, chain: IntArray, clock_mhz: Sequence[int] | IntArray, plan: UnitPlan) -> IntArray:
    """Clock columns of one unit's vertices, in order of execution, under the plan of its GPUs.

    Raises:
        KeyError, ValueError: as :func:`clock_columns`.
    """
    column = {int(mhz): i for i, mhz in enumerate(clock_mhz)}
    result = np.zeros(len(chain), dtype=np.int64)
    begins = {(s.kind, s.chunk, s.microbatch): s.clock_mhz for s in plan.segments}
    current = plan.segments[-1].clock_mhz
    for position, vertex in enumerate(chain):
        v = graph.vertices[int(vertex)]
        current = begins.pop((v.kind, v.chunk, v.microbatch), current) if v.kind in ANCHORS else current
        if current not in column:
            raise ValueError(str(current))
        result[position] = column[current]
    if begins:
        raise KeyError(next(iter(begins)))
    return result
