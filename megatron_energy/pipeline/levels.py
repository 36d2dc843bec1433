"""Topological levels of a graph, laid out for fast longest-path sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


class CycleError(ValueError):
    """The graph has a cycle; ``vertices`` are those that wait for each other."""

    def __init__(self, vertices: Sequence[int]) -> None:
        super().__init__(f"{len(vertices)} vertices wait for each other")
        self.vertices = list(vertices)


def topological_order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Vertices 0 to ``count - 1``, every edge leading from an earlier to a later one.

    Raises:
        CycleError: there is no such order.
    """
    followers: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for before, after in edges:
        followers[before].append(after)
        missing[after] += 1
    order = [vertex for vertex in range(count) if missing[vertex] == 0]
    for vertex in order:  # grows while it is walked
        for follower in followers[vertex]:
            missing[follower] -= 1
            if missing[follower] == 0:
                order.append(follower)
    if len(order) < count:
        raise CycleError([vertex for vertex in range(count) if missing[vertex] > 0])
    return order


@dataclass(frozen=True, slots=True)
class Level:
    """Vertices that depend on earlier levels only.

    Attributes:
        vertices: (k,) vertex indices.
        before: (p, k) their predecessors, padded with the index n, which stands for the start of the iteration.
        lag_s: (p, k, 1) lags of these edges, 0 where padded; None when all of them are 0.
    """

    vertices: IntArray
    before: IntArray
    lag_s: FloatArray | None


@dataclass(frozen=True, slots=True)
class Levels:
    """All levels of a graph of ``count`` vertices."""

    count: int
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, count: int, edges: IntArray, lag_s: FloatArray) -> "Levels":
        """Sort (m, 2) ``edges`` with (m,) lags. Raises :class:`CycleError`."""
        pairs: list[tuple[int, int]] = [(a, b) for a, b in edges.tolist()]
        before: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for (a, b), lag in zip(pairs, lag_s.tolist(), strict=True):
            before[b].append((a, lag))
        depth = [0] * count
        members: list[list[int]] = []
        for vertex in topological_order(count, pairs):
            depth[vertex] = max((depth[a] + 1 for a, _ in before[vertex]), default=0)
            while len(members) <= depth[vertex]:
                members.append([])
            members[depth[vertex]].append(vertex)
        return cls(count, tuple(_level(sorted(vertices), before, count) for vertices in members))

    def ends(self, duration_s: FloatArray) -> FloatArray:
        """Earliest ends when everything starts as soon as it may.

        Args:
            duration_s: (n, B) durations of B cases.

        Returns:
            (n, B) ends in seconds since the start of the iteration.
        """
        ends = np.zeros((self.count + 1, duration_s.shape[1]))
        for level in self.levels:
            ready = ends[level.before]
            if level.lag_s is not None:
                ready += level.lag_s
            ends[level.vertices] = ready.max(axis=0) + duration_s[level.vertices]
        return ends[: self.count]


def _level(vertices: list[int], before: list[list[tuple[int, float]]], start: int) -> Level:
    width = max(1, *(len(before[vertex]) for vertex in vertices)) if vertices else 1
    rows = [before[vertex] + [(start, 0.0)] * (width - len(before[vertex])) for vertex in vertices]
    index = np.array([[a for a, _ in row] for row in rows], dtype=np.int64).T
    lag_s = np.array([[lag for _, lag in row] for row in rows], dtype=np.float64).T[:, :, np.newaxis]
    return Level(np.array(vertices, dtype=np.int64), np.ascontiguousarray(index), lag_s if lag_s.any() else None)
