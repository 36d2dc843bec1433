"""The plan of a graph from a file: which clock every unit runs at, operation by operation, and what that is expected to give.

    {"schema": "megatron-energy/graph-plan", "version": 1, "policy": "segments", "max_switches": 8,
     "expected": {"iteration_s": ..., "energy_j": ..., "saved_percent": ..., ...},
     "units": [{"name": "gpu 0", "segments": [{"operation": "A", "clock_mhz": 1200}, ...]}]}

A segment holds from its operation on until the next one's; the last one's clock holds until the first begins in the next iteration.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.assemble import expectation
from megatron_energy.planning.graph_file import GraphFile, write_json
from megatron_energy.planning.plan import Expectation
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.requests import enforce_lead
from megatron_energy.planning.sequences import clocked_vertices

SCHEMA = "megatron-energy/graph-plan"
VERSION = 1


@dataclass(frozen=True)
class GraphSegment:
    """From the begin of this operation on, the unit's GPUs run at this clock."""

    operation: str
    clock_mhz: int


@dataclass(frozen=True)
class GraphUnitPlan:
    """One unit's segments in the order of the iteration; none where the clock makes no difference to it."""

    name: str
    segments: tuple[GraphSegment, ...]

    @property
    def switches(self) -> int:
        """Changes of the clock per iteration, counted cyclically."""
        clocks = [s.clock_mhz for s in self.segments]
        return sum(a != b for a, b in zip(clocks, clocks[1:] + clocks[:1], strict=True))


@dataclass(frozen=True)
class GraphPlan:
    """See the module's text.

    Attributes:
        policy, max_switches, lead_s: how the clocks were chosen.
        slowdown, straggler: what the deadline was made of.
        expected: replayed figures.
        units: in the order of the graph file.
        solve_s: time the planner took.
        provenance: where the profile came from.
    """

    policy: str
    max_switches: int
    lead_s: float
    slowdown: float
    straggler: float
    expected: Expectation
    units: tuple[GraphUnitPlan, ...]
    solve_s: float = 0.0
    provenance: dict[str, str | float | bool] = field(default_factory=dict)

    @property
    def switches_mean(self) -> float:
        """Switches per unit and iteration, mean."""
        return sum(u.switches for u in self.units) / len(self.units)

    @property
    def switches_max(self) -> int:
        """Switches per iteration of the unit with the most."""
        return max(u.switches for u in self.units)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a reader never sees half of it.

        Raises:
            UserError: the file cannot be written.
        """
        write_json(self.to_dict(), path)


def plan_graph(
    content: GraphFile,
    problem: Problem,
    policy: str,
    *,
    max_switches: int = 8,
    effort: str = "default",
    lead_s: float = 0.0,
) -> GraphPlan:
    """Solve the problem of a graph and name the result's operations; ``solve_s`` and ``provenance`` are the caller's to fill.

    Args:
        content: the graph file.
        problem: made from it by :func:`~megatron_energy.planning.graph_problem.graph_problem`.
        policy: any that needs no schedule of Megatron's.
        max_switches: as in :func:`megatron_energy.planning.policies.solve`.
        effort: likewise.
        lead_s: likewise.

    Raises:
        UserError: unknown policy or effort, or one that knows Megatron's schedules only.
    """
    if policy == "envpipe":
        raise UserError("EnvPipe knows plain 1F1B only, not graphs from files: choose another policy")
    solution = solve(problem, policy, max_switches=max_switches, effort=effort, lead_s=lead_s)
    first = replay(problem.graph, problem.durations(solution.clocks))
    clocks = enforce_lead(problem, solution.clocks, first.start_s, first.makespan_s, lead_s)
    units = [
        GraphUnitPlan(unit.name, _segments(content, problem, member, clocks))
        for unit, member in zip(content.units, clocked_vertices(problem), strict=True)
    ]
    expected = expectation(problem, clocks, solution.bound.energy_j, solution.limit_energy_j, lead_s=lead_s)
    return GraphPlan(policy, max_switches, lead_s, problem.slowdown, problem.straggler, expected, tuple(units))


def _segments(content: GraphFile, problem: Problem, member: IntArray, clocks: IntArray) -> tuple[GraphSegment, ...]:
    sequence = clocks[member]
    cuts = np.flatnonzero(sequence != np.roll(sequence, 1)).tolist() or [0]
    names = [content.operations[int(vertex)].name for vertex in member]
    return tuple(GraphSegment(names[p], int(problem.tables.clock_mhz[sequence[p]])) for p in cuts) if names else ()
