"""Ties: groups of vertices that share one clock."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import IntArray, Vertex
from megatron_energy.planning.problem import Problem


@dataclass(frozen=True)
class Ties:
    """Which vertices share a clock.

    Attributes:
        group: (n,) group of every vertex, from 0; -1 where the clock makes no difference.
        count: number of groups, G.
        free: (n,) columns of the vertices without a group, elsewhere ignored.
    """

    group: IntArray
    count: int
    free: IntArray

    def clocks(self, columns: IntArray) -> IntArray:
        """(..., n) clock columns of all vertices, from (..., G) columns of the groups."""
        spread = np.concatenate([columns, np.zeros((*columns.shape[:-1], 1), dtype=np.int64)], axis=-1)[..., self.group]
        return np.where(self.group >= 0, spread, self.free).astype(np.int64)

    def columns(self, clocks: IntArray) -> IntArray:
        """(G,) columns of the groups, from (n,) clock columns in which every group has one clock."""
        result = np.zeros(self.count, dtype=np.int64)
        tied = self.group >= 0
        result[self.group[tied]] = clocks[tied]
        return result


def tie(problem: Problem, key: Callable[[Vertex], Hashable]) -> Ties:
    """Group the vertices whose clock matters by a key."""
    tables = problem.tables
    varies = (np.ptp(tables.time_s, axis=1) > 0) | (np.ptp(tables.energy_j, axis=1) > 0)
    index: dict[Hashable, int] = {}
    group = [index.setdefault(key(v), len(index)) if varies[i] else -1 for i, v in enumerate(problem.graph.vertices)]
    return Ties(np.array(group, dtype=np.int64), len(index), problem.baseline_clocks)


def by_role(problem: Problem) -> Ties:
    """A group per unit, direction and role: warm-up, steady and cool-down of forward and of backward; each other step by its kind."""
    return tie(problem, lambda v: (v.unit, v.kind, v.role))


def by_stage(problem: Problem) -> Ties:
    """A group per unit: a pipeline stage, of each replica that the graph holds."""
    return tie(problem, lambda v: v.unit)
