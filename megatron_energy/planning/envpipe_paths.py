"""The critical path, as it is and as EnvPipe estimates it."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.planning.problem import TIME_TOLERANCE, Problem

THRESHOLD_SCALE = 4
"""How many times the shortest receive of the last stage counts as waiting (RECONFIGURE_THRESHOLD_SCALE of the published scripts)."""


class PathFinder(Protocol):
    """Finds a path through the operations of one iteration."""

    def find(self, duration_s: FloatArray) -> IntArray:
        """Vertices of the path, first to last, for (n,) durations in s."""


class LongestPath:
    """A true longest path. Among equals (within rounding) it keeps to the preferred vertices, then to those with the smallest numbers."""

    def __init__(self, graph: Graph, preferred: npt.NDArray[np.bool_]) -> None:
        self._graph = graph
        self._before: list[list[tuple[int, float]]] = [[] for _ in graph.vertices]
        for (a, b), lag_s in zip(graph.edges.tolist(), graph.lag_s.tolist(), strict=True):
            self._before[b].append((a, lag_s))
        for edges in self._before:
            edges.sort(key=lambda edge: (not preferred[edge[0]], edge[0]))

    def find(self, duration_s: FloatArray) -> IntArray:
        """Vertices of one longest path, first to last, joins included."""
        end_s = self._graph.levels.ends(duration_s[:, np.newaxis])[:, 0].tolist()
        longest_s = max(end_s)
        path = [end_s.index(longest_s)]
        while before := self._before[path[-1]]:
            latest_s = max(end_s[a] + lag_s for a, lag_s in before) - TIME_TOLERANCE * longest_s
            path.append(next(a for a, lag_s in before if end_s[a] + lag_s >= latest_s))
        return np.array(path[::-1], dtype=np.int64)


class MeasuredPath:
    """EnvPipe's estimate: from the first stage's last backward back, to the sender where a receive took long, else to the operation before.

    Long is more than four times the shortest receive of the last stage, as measured in the first iteration. The published code
    so takes for granted that the last stage has a receive that does not wait; where it is not the bottleneck, waiting hides in
    the threshold and the path comes out wrong. (Where the published code would leave its grid, an operation without predecessor on its own
    stage, the path goes on at the sender.)
    """

    def __init__(self, problem: Problem, receive_share: float) -> None:
        graph = problem.graph
        chains = [[int(v) for v in chain if graph.vertices[int(v)].kind in ("forward", "backward")] for chain in graph.chains]
        self._graph, self._chains = graph, chains
        self._previous: dict[int, int | None] = {b: a for chain in chains for a, b in zip([None, *chain], chain, strict=False)}
        self._sender = _senders(graph, chains)
        last = max(unit.stage for unit in graph.units)
        self._last = [v for unit, chain in zip(graph.units, chains, strict=True) if unit.stage == last for v in chain]
        self._start = chains[[unit.stage for unit in graph.units].index(0)][-1]
        forward_s = float(problem.tables.time_s[self._last[0], problem.baseline_column])
        self._receive_s = float(graph.lag_s.max(initial=0.0)) or receive_share * forward_s
        self._threshold_s: float | None = None

    def find(self, duration_s: FloatArray) -> IntArray:
        """Vertices of the path, first to last."""
        end_s = self._graph.levels.ends(duration_s[:, np.newaxis])[:, 0]
        receive_s = self._receives(end_s - duration_s, end_s)
        if self._threshold_s is None:
            self._threshold_s = THRESHOLD_SCALE * min((receive_s[v] for v in self._last if v in receive_s), default=0.0)
        vertex: int | None = self._start
        path = []
        while vertex is not None:
            path.append(vertex)
            before = self._previous[vertex]
            waited = before is None or receive_s.get(vertex, 0.0) >= self._threshold_s
            vertex = self._sender[vertex] if waited and vertex in self._sender else before
        return np.array(path[::-1], dtype=np.int64)

    def _receives(self, start_s: FloatArray, end_s: FloatArray) -> dict[int, float]:
        """Per operation that receives: seconds from the end of the operation before it to its own start, the receive itself included."""
        found = {}
        for vertex in self._sender:
            before = self._previous[vertex]
            waited_s = float(start_s[vertex] - (0.0 if before is None else end_s[before]))
            found[vertex] = max(waited_s, 0.0) + self._receive_s
        return found


def _senders(graph: Graph, chains: list[list[int]]) -> dict[int, int]:
    """For every operation that receives: the operation whose result it receives."""
    at = {}
    for unit, chain in zip(graph.units, chains, strict=True):
        for vertex in chain:
            v = graph.vertices[vertex]
            at[unit.replica, unit.stage, v.kind, v.microbatch] = vertex
    senders = {}
    for (replica, stage, kind, microbatch), vertex in at.items():
        sender = at.get((replica, stage + (-1 if kind == "forward" else 1), kind, microbatch))
        if sender is not None:
            senders[vertex] = sender
    return senders
