"""Replay: when every vertex of a graph starts and ends, given how long each takes."""

from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray, Graph


@dataclass(frozen=True, slots=True)
class Replay:
    """Times in seconds since the start of the iteration.

    Attributes:
        start_s: (n,) start of every vertex, as early as its edges allow.
        end_s: (n,) end of every vertex.
        makespan_s: end of the last vertex: the iteration's time.
    """

    start_s: FloatArray
    end_s: FloatArray
    makespan_s: float


def replay(graph: Graph, duration_s: FloatArray) -> Replay:
    """Start every vertex as soon as its edges allow.

    Args:
        graph: the dependency graph.
        duration_s: (n,) seconds per vertex; 0 for joins.
    """
    end_s = graph.levels.ends(duration_s[:, np.newaxis])[:, 0]
    return Replay(end_s - duration_s, end_s, float(end_s.max(initial=0.0)))


def makespans(graph: Graph, duration_s: FloatArray) -> FloatArray:
    """(B,) iteration times in seconds for B sets of durations, given as (n, B)."""
    longest: FloatArray = graph.levels.ends(duration_s).max(axis=0, initial=0.0)
    return longest


def critical_path(graph: Graph, result: Replay) -> list[int]:
    """Vertices (joins included) of one longest path, first to last: each starts when the one before it lets it.

    Among equals, the vertex with the smallest index is taken.
    """
    if not graph.vertices:
        return []
    before: list[list[int]] = [[] for _ in graph.vertices]
    for edge, (_, b) in enumerate(graph.edges):
        before[b].append(edge)
    vertex = int(result.end_s.argmax())
    path = [vertex]
    while before[vertex]:
        edges = np.array(before[vertex])
        ready_s = result.end_s[graph.edges[edges, 0]] + graph.lag_s[edges]
        vertex = int(graph.edges[edges[ready_s.argmax()], 0])
        path.append(vertex)
    return path[::-1]


def busy_s(graph: Graph, duration_s: FloatArray) -> FloatArray:
    """(units,) seconds that each unit works: the sum of its vertices' durations."""
    return np.bincount(graph.unit_of_vertex, weights=duration_s, minlength=len(graph.units)).astype(np.float64)


def waiting_s(graph: Graph, result: Replay, horizon_s: float | None = None) -> FloatArray:
    """(units,) seconds that each unit does not work, until ``horizon_s`` (default: the iteration's own end)."""
    horizon_s = result.makespan_s if horizon_s is None else horizon_s
    return horizon_s - busy_s(graph, result.end_s - result.start_s)


def energy_j(
    graph: Graph,
    duration_s: FloatArray,
    vertex_energy_j: FloatArray,
    blocking_power_w: float | FloatArray,
    horizon_s: float | None = None,
) -> float:
    """Energy of the iteration in J: all vertices, and blocking power while units wait.

    Args:
        graph: the dependency graph.
        duration_s: (n,) seconds per vertex.
        vertex_energy_j: (n,) joules per vertex.
        blocking_power_w: W of a waiting unit; one value or one per unit.
        horizon_s: until when units wait (a straggler's end); default: the iteration's own end, which takes a replay.

    Returns:
        Joules of all units together.
    """
    if horizon_s is None:
        horizon_s = replay(graph, duration_s).makespan_s
    waiting = horizon_s - busy_s(graph, duration_s)
    return float(vertex_energy_j.sum() + (waiting * blocking_power_w).sum())
