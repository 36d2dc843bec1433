"""Graphs from files: any schedule's operations, what must end before what, and where the profile has their times and energies.

    {"schema": "megatron-energy/graph", "version": 1,
     "units": [{"name": "gpu 0"}, {"name": "gpu 1"}],
     "operations": [{"name": "load", "unit": "gpu 0", "time_s": 0.1, "energy_j": 9.0},
                    {"name": "A", "unit": "gpu 0", "instruction": "forward"},
                    {"name": "B", "unit": "gpu 1", "instruction": "forward", "stage": 1, "chunk": 0}],
     "edges": [{"before": "A", "after": "B", "lag_s": 0.001}]}

A unit runs its operations in the order of the file. Everything else about the format is in docs/graphs.md.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megatron_energy.atomic import write_whole
from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import Role
from megatron_energy.planning.document import read_document
from megatron_energy.planning.typed import build

SCHEMA = "megatron-energy/graph"
VERSION = 1

JOIN = "join"
"""Instruction of an operation that takes neither time nor energy: several wait for several others."""


@dataclass(frozen=True)
class GraphUnit:
    """A lock-step unit: GPUs that share one program.

    Attributes:
        name: for people.
        stage: where the profile has its curves, unless an operation says otherwise; None: the unit's place in the file.
        replica: data-parallel replica.
    """

    name: str
    stage: int | None = None
    replica: int = 0


@dataclass(frozen=True)
class GraphOperation:
    """One operation. It has an instruction (its times are in the profile) or a fixed time and energy.

    Attributes:
        name: unique in the file.
        unit: name of the unit that runs it.
        instruction: of the profile, or ``join``.
        stage: of the profile; None: the unit's.
        chunk: of the profile; -1: the whole stage's curve.
        time_s, energy_j: of one GPU, at every clock; for what the clock does not change.
        microbatch, role: told where known; the policy ``roles`` gives every (unit, direction, role) one clock.
    """

    name: str
    unit: str
    instruction: str | None = None
    stage: int | None = None
    chunk: int = -1
    time_s: float | None = None
    energy_j: float | None = None
    microbatch: int = -1
    role: Role = "idle"


@dataclass(frozen=True)
class GraphEdge:
    """``after`` starts at the earliest ``lag_s`` after ``before`` has ended."""

    before: str
    after: str
    lag_s: float = 0.0


@dataclass(frozen=True)
class GraphFile:
    """The content of a file.

    Attributes:
        units: in order.
        operations: in order; those of one unit run in this order.
        edges: what else must end before what.
        chunks: over how many chunks the curve of a whole stage is split for operations with a chunk; None: as many as the file names.
    """

    units: tuple[GraphUnit, ...]
    operations: tuple[GraphOperation, ...]
    edges: tuple[GraphEdge, ...] = ()
    chunks: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without those that are as they would be anyway."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "units": [_told(unit) for unit in self.units],
            "operations": [_told(operation) for operation in self.operations],
            "edges": [_told(edge) for edge in self.edges],
            **({} if self.chunks is None else {"chunks": self.chunks}),
        }


def load_graph(path: str | os.PathLike[str]) -> GraphFile:
    """Read a graph file.

    Raises:
        UserError: no such file, no graph, another version, or what is wrong in it and where.
    """
    wanted = f'it must be a JSON object with "schema": "{SCHEMA}"'
    body = read_document(path, "graph", SCHEMA, VERSION, otherwise=wanted, again="write it anew")
    try:
        content = build(GraphFile, body)
        _check(content)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return content


def _check(content: GraphFile) -> None:
    """Raise ValueError for what no type shows: names that are not unique or unknown, times that cannot be."""
    if not content.operations:
        raise ValueError("operations: there are none")
    if content.chunks is not None and content.chunks < 1:
        raise ValueError(f"chunks: {content.chunks} must be at least 1")
    _check_names("units", (unit.name for unit in content.units))
    _check_names("operations", (operation.name for operation in content.operations))
    units = {unit.name for unit in content.units}
    for place, operation in enumerate(content.operations):
        _check_operation(f"operations[{place}]", operation, units)
    idle = units - {operation.unit for operation in content.operations}
    if idle:
        raise ValueError(f"units: '{min(idle)}' has no operation: give it one or leave it out")
    names = {operation.name for operation in content.operations}
    for place, edge in enumerate(content.edges):
        for end in (edge.before, edge.after):
            if end not in names:
                raise ValueError(f"edges[{place}]: there is no operation '{end}'")
        if edge.lag_s < 0:
            raise ValueError(f"edges[{place}].lag_s: {edge.lag_s} must not be negative")


def _check_names(where: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for place, name in enumerate(names):
        if not name or name in seen:
            raise ValueError(f"{where}[{place}].name: '{name}' {'is there twice' if name else 'must not be empty'}")
        seen.add(name)


def _check_operation(place: str, operation: GraphOperation, units: set[str]) -> None:
    if operation.unit not in units:
        raise ValueError(f"{place}.unit: there is no unit '{operation.unit}'")
    figures = [("time_s", operation.time_s), ("energy_j", operation.energy_j)]
    given = [name for name, value in figures if value is not None]
    if operation.instruction is None and len(given) < 2:
        raise ValueError(f"{place}: '{operation.name}' needs an instruction of the profile, or time_s and energy_j")
    if operation.instruction is not None and given:
        raise ValueError(f"{place}: '{operation.name}' has an instruction and {given[0]}: give one or the other")
    for name, value in figures:
        if value is not None and value < 0:
            raise ValueError(f"{place}.{name}: {value} must not be negative")


def _told(item: GraphUnit | GraphOperation | GraphEdge) -> dict[str, Any]:
    return {f.name: value for f in dataclasses.fields(item) if (value := getattr(item, f.name)) != f.default}


def write_json(body: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a file; a reader never sees half of it.

    Raises:
        UserError: it cannot be written.
    """
    try:
        write_whole(path, json.dumps(body, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error
