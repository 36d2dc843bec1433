"""From a graph file to a planning problem: the dependency graph, and the profile's times and energies."""

import itertools
from typing import get_args

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import Graph, IntArray, Unit, Vertex, VertexKind
from megatron_energy.pipeline.levels import CycleError, topological_order
from megatron_energy.planning.graph_file import JOIN, GraphFile, GraphOperation, GraphUnit
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import Tables, curve_of, tables_of


def graph_problem(
    content: GraphFile,
    profile: Profile,
    blocking_power_w: float,
    *,
    gpus_per_unit: int = 1,
    slowdown: float = 0.0,
    straggler: float = 1.0,
) -> Problem:
    """The planning problem of a graph file.

    Raises:
        UserError: a cycle, or an operation that the profile does not cover.
    """
    return Problem(graph_of(content), tables_for(content, profile), blocking_power_w, gpus_per_unit, slowdown, straggler)


def graph_of(content: GraphFile) -> Graph:
    """The dependency graph; vertices in the order of the operations.

    Raises:
        UserError: names the operations that wait for each other.
    """
    number = {operation.name: i for i, operation in enumerate(content.operations)}
    place = {unit.name: i for i, unit in enumerate(content.units)}
    chains: list[list[int]] = [[] for _ in content.units]
    for i, operation in enumerate(content.operations):
        chains[place[operation.unit]].append(i)
    lags: dict[tuple[int, int], float] = {(a, b): 0.0 for chain in chains for a, b in itertools.pairwise(chain)}
    for edge in content.edges:
        pair = number[edge.before], number[edge.after]
        lags[pair] = max(edge.lag_s, lags.get(pair, 0.0))
    edges = sorted(lags)
    _check_acyclic(content, edges)
    return Graph(
        units=tuple(Unit(_stage(unit, i), unit.replica) for i, unit in enumerate(content.units)),
        vertices=tuple(_vertex(operation, place[operation.unit]) for operation in content.operations),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        lag_s=np.array([lags[pair] for pair in edges], dtype=np.float64),
        chains=tuple(np.array(chain, dtype=np.int64) for chain in chains),
    )


def tables_for(content: GraphFile, profile: Profile) -> Tables:
    """Times and energies of the operations at every clock that all curves have.

    Raises:
        UserError: names the operation that the profile does not cover; or the curves have no clock in common.
    """
    stages = {unit.name: _stage(unit, i) for i, unit in enumerate(content.units)}
    chunks = content.chunks or 1 + max(operation.chunk for operation in content.operations)
    found: dict[tuple[int, int, str], Curve] = {}
    curves: list[Curve | None] = []
    for operation in content.operations:
        if operation.instruction is None:
            curves.append(_fixed(operation))
        elif operation.instruction == JOIN:
            curves.append(None)
        else:
            stage = stages[operation.unit] if operation.stage is None else operation.stage
            key = stage, operation.chunk, operation.instruction
            if key not in found:
                try:
                    found[key] = curve_of(profile, *key, max(chunks, 1))
                except UserError as error:
                    raise UserError(f"operation '{operation.name}': {error}") from error
            curves.append(found[key])
    return tables_of(curves)


def _check_acyclic(content: GraphFile, edges: list[tuple[int, int]]) -> None:
    try:
        topological_order(len(content.operations), edges)
    except CycleError as error:
        names = " -> ".join(f"'{content.operations[i].name}'" for i in _cycle(error.vertices, edges))
        raise UserError(f"operations wait for each other: {names}: change the order of their unit's operations or drop an edge") from error


def _stage(unit: GraphUnit, place: int) -> int:
    return place if unit.stage is None else unit.stage


def _vertex(operation: GraphOperation, unit: int) -> Vertex:
    kind: VertexKind = "fixed"
    for known in get_args(VertexKind):
        if operation.instruction == known:
            kind = known
    return Vertex(unit, kind, operation.chunk, operation.microbatch, operation.role)


def _fixed(operation: GraphOperation) -> Curve:
    clock_mhz: IntArray = np.zeros(1, dtype=np.int64)  # 0: the clock does not matter
    return Curve(clock_mhz, np.array([operation.time_s], dtype=np.float64), np.array([operation.energy_j], dtype=np.float64))


def _cycle(among: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """One cycle of the edges between these vertices, which have a predecessor among them each; its first vertex stands at the end again."""
    inside = set(among)
    before = {b: a for a, b in edges if a in inside and b in inside}
    path = [among[0]]
    while path[-1] not in path[:-1]:
        path.append(before[path[-1]])
    return path[path.index(path[-1]) :][::-1]
