"""Longer iterations from shorter ones: what a job with fewer microbatches tells about the same job with more of them.

Away from its ends an iteration repeats itself, group of microbatches by group. So the begin of the longer iteration is like the begin of
the shorter one, its end like the end, and every group between them like the last one before the shorter one's middle.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from megatron_energy.pipeline.graph import Graph, IntArray
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.problem import Problem

_Step: TypeAlias = tuple[int, str, int]
"""(unit, kind, chunk); a join is known by what precedes it."""


@dataclass(frozen=True)
class Stretch:
    """What stands for what.

    Attributes:
        vertex: (n,) for every vertex of the longer job's graph one of the shorter job's, -1 where none is like it.
        row: (m + k,) the same for its edges, then for its sinks.
    """

    vertex: IntArray
    row: IntArray

    def clocks(self, short: IntArray, otherwise: IntArray) -> IntArray:
        """(n,) clock columns of the longer job from those of the shorter one; ``otherwise``: (n,) where nothing is alike."""
        return np.where(self.vertex >= 0, short[self.vertex], otherwise).astype(np.int64)


def period_of(schedule: Schedule) -> int:
    """Microbatches after which the schedule's steady state repeats itself."""
    return schedule.group if schedule.interleaved else 1


def stretch(short: Problem, long: Problem, period: int) -> Stretch:
    """Compare two problems that differ in their number of microbatches, by whole periods.

    Raises:
        ValueError: they differ by something else.
    """
    few, many = _microbatches(short.graph), _microbatches(long.graph)
    if few > many or (many - few) % period:
        raise ValueError(f"{few} microbatches cannot be stretched to {many} in steps of {period}")
    if short.graph.units != long.graph.units:
        raise ValueError("the two graphs have different units")
    middle, added = max(1, -(-(few // period) // 2)) * period, many - few  # of an odd number of groups the middle one is repeated

    def counterpart(microbatch: int) -> int:
        if microbatch < middle:
            return microbatch
        if microbatch >= middle + added:
            return microbatch - added
        return middle - period + (microbatch - middle) % period

    places = _places(short.graph)
    at = {place: vertex for vertex, place in enumerate(places)}
    long_places = _places(long.graph)
    vertex = np.array([at.get((step, counterpart(microbatch)), -1) for step, microbatch in long_places], dtype=np.int64)
    return Stretch(vertex, _rows(short, long, places, long_places, vertex))


def _microbatches(graph: Graph) -> int:
    return 1 + max(vertex.microbatch for vertex in graph.vertices)


def _places(graph: Graph) -> list[tuple[_Step, int]]:
    """(step, microbatch) of every vertex, unlike for any two; -1 for steps without a microbatch."""
    places: list[tuple[_Step, int]] = [((0, "", 0), 0)] * len(graph.vertices)
    for chain in graph.chains:
        kind, chunk, microbatch = "", -1, -1
        for number in chain.tolist():
            vertex = graph.vertices[number]
            if vertex.kind == "join":
                kind += "+join"
            else:
                kind, chunk, microbatch = vertex.kind, vertex.chunk, vertex.microbatch
            places[number] = (vertex.unit, kind, chunk), microbatch
    return places


def _rows(
    short: Problem, long: Problem, short_places: list[tuple[_Step, int]], long_places: list[tuple[_Step, int]], vertex: IntArray
) -> IntArray:
    """Edges are alike that begin alike and end at the same step, so many microbatches later."""

    def key(a: int, b: int, begin: int, places: list[tuple[_Step, int]]) -> tuple[int, _Step, int | None]:
        first, (step, last) = places[a][1], places[b]
        return begin, step, last - first if min(first, last) >= 0 else None

    edges = {key(a, b, a, short_places): row for row, (a, b) in enumerate(short.graph.edges.tolist())}
    sinks = {sink: len(short.graph.edges) + row for row, sink in enumerate(short.paths.sinks.tolist())}
    like = vertex.tolist()
    rows = [edges.get(key(a, b, like[a], long_places), -1) for a, b in long.graph.edges.tolist()]
    rows += [sinks.get(like[sink], -1) for sink in long.paths.sinks.tolist()]
    return np.array(rows, dtype=np.int64)
