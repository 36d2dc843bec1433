"""A dependency graph under construction: vertices come and go, joins are contracted, redundant edges dropped."""

from dataclasses import dataclass, field

import numpy as np

from megatron_energy.pipeline.graph import Graph, Unit, Vertex
from megatron_energy.pipeline.levels import topological_order


@dataclass
class Draft:
    """Vertices are numbered in order of creation; the numbers are not reused."""

    vertices: list[Vertex] = field(default_factory=list)
    before: list[dict[int, float]] = field(default_factory=list)  # per vertex: predecessor -> lag in s
    after: list[dict[int, float]] = field(default_factory=list)  # the same edges from the other end
    chains: list[list[int]] = field(default_factory=list)  # per unit, in execution order

    def add(self, vertex: Vertex, previous: int | None = None) -> int:
        """Append ``vertex`` to the chain of its unit, after ``previous``; returns its number."""
        number = len(self.vertices)
        self.vertices.append(vertex)
        self.before.append({})
        self.after.append({})
        self.chains[vertex.unit].append(number)
        if previous is not None:
            self.connect(previous, number)
        return number

    def connect(self, a: int, b: int, lag_s: float = 0.0) -> None:
        """Let b start ``lag_s`` after a ends, at the earliest. Of several edges between two vertices the longest lag counts."""
        lag_s = max(lag_s, self.before[b].get(a, 0.0))
        self.before[b][a] = self.after[a][b] = lag_s

    def check_acyclic(self) -> None:
        """Raise ``CycleError`` if vertices wait for each other."""
        topological_order(len(self.vertices), [(a, b) for a, followers in enumerate(self.after) for b in followers])

    def contract_joins(self) -> None:
        """Replace joins by direct edges where that makes no more edges than it removes; a join that nobody follows goes.

        The last wait of a unit constrains nothing: whoever meets it in that transfer waits as long, and goes on working.
        """
        for number, vertex in enumerate(self.vertices):
            before, after = self.before[number], self.after[number]
            if vertex.kind == "join" and len(before) * len(after) <= len(before) + len(after):
                self._bypass(number)
        for unit, chain in enumerate(self.chains):
            self.chains[unit] = [n for n in chain if self.vertices[n].kind != "join" or self.before[n] or self.after[n]]

    def _bypass(self, number: int) -> None:
        before, after = self.before[number], self.after[number]
        self.before[number], self.after[number] = {}, {}
        for a in before:
            del self.after[a][number]
        for b in after:
            del self.before[b][number]
        for a, lag_in in before.items():
            for b, lag_out in after.items():
                self.connect(a, b, lag_in + lag_out)

    def drop_implied_edges(self) -> None:
        """Drop every edge that another edge between the same two units implies, together with the units' own order.

        From a to b is implied by from a' to b' when a' is a or later, b' is b or earlier, and the lag is no shorter.
        """
        place = {number: i for chain in self.chains for i, number in enumerate(chain)}
        between: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        for a in place:
            for b, lag_s in self.after[a].items():
                between.setdefault((self.vertices[a].unit, self.vertices[b].unit), []).append((a, b, lag_s))
        for edges in between.values():
            latest: dict[float, int] = {}  # per lag, the latest place of a among the edges kept so far
            for a, b, lag_s in sorted(edges, key=lambda edge: (place[edge[1]], -place[edge[0]], -edge[2])):
                if any(other >= lag_s and at >= place[a] for other, at in latest.items()):
                    del self.after[a][b], self.before[b][a]
                else:
                    latest[lag_s] = place[a]

    def finish(self, units: tuple[Unit, ...]) -> Graph:
        """The graph: vertices renumbered chain by chain, edges sorted."""
        kept = [number for chain in self.chains for number in chain]
        new = {number: i for i, number in enumerate(kept)}
        edges = sorted((new[a], new[b], lag) for a in kept for b, lag in self.after[a].items())
        return Graph(
            units=units,
            vertices=tuple(self.vertices[number] for number in kept),
            edges=np.array([(a, b) for a, b, _ in edges], dtype=np.int64).reshape(-1, 2),
            lag_s=np.array([lag for _, _, lag in edges], dtype=np.float64),
            chains=tuple(np.array([new[number] for number in chain], dtype=np.int64) for chain in self.chains),
        )
