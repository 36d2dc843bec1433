"""The dependency graph of one iteration: what must end before what may start."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from megatron_energy.pipeline.levels import FloatArray, IntArray, Levels

__all__ = ["FloatArray", "Graph", "IntArray", "Role", "Unit", "Vertex", "VertexKind"]

VertexKind: TypeAlias = Literal["forward", "backward", "join", "grad-sync", "optimizer", "fixed"]
Role: TypeAlias = Literal["warm-up", "steady", "cool-down", "grad-sync", "optimizer", "idle"]


@dataclass(frozen=True, slots=True)
class Unit:
    """GPUs that run in lock-step and share one program: the tensor- and context-parallel ranks of one stage of one replica."""

    stage: int
    replica: int = 0


@dataclass(frozen=True, slots=True)
class Vertex:
    """One vertex: an operation, a zero-length join (a p2p wait), or grad sync / optimizer / another fixed-time step."""

    unit: int  # index into Graph.units
    kind: VertexKind
    chunk: int = -1
    microbatch: int = -1
    role: Role = "idle"


@dataclass(frozen=True, eq=False)
class Graph:
    """Vertices and edges; ``start[b] >= end[a] + lag_s`` for every edge (a, b).

    Attributes:
        units: lock-step units, the rows of a time line.
        vertices: n vertices.
        edges: (m, 2) vertex indices.
        lag_s: (m,) seconds between the end of a and the earliest start of b (transfer time).
        chains: per unit, its vertices in execution order (joins included); each starts after the one before it.
    """

    units: tuple[Unit, ...]
    vertices: tuple[Vertex, ...]
    edges: IntArray
    lag_s: FloatArray
    chains: tuple[IntArray, ...]

    @cached_property
    def levels(self) -> Levels:
        """Vertices sorted so that edges lead to later levels; computed once per graph."""
        return Levels.of(len(self.vertices), self.edges, self.lag_s)

    @cached_property
    def unit_of_vertex(self) -> IntArray:
        """(n,) index into ``units`` of every vertex."""
        return np.array([vertex.unit for vertex in self.vertices], dtype=np.int64)
