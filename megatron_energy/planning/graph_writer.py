"""Graph files from graphs that were built for a schedule, as a start for schedules of one's own."""

import itertools
import os

from megatron_energy.pipeline.graph import Graph, Vertex
from megatron_energy.planning.graph_file import GraphEdge, GraphFile, GraphOperation, GraphUnit, write_json


def to_file(graph: Graph, chunks: int = 1) -> GraphFile:
    """The content of a graph file that gives the same graph again.

    Edges that the order of a unit's operations implies are left out. Names are ``F1.3`` (chunk 1, microbatch 3) and the unit's.

    Args:
        graph: without steps of kind ``fixed``, whose times are not in a graph.
        chunks: over how many chunks the profile's stages are split.
    """
    several = any(unit.replica for unit in graph.units)
    units = [f"stage {unit.stage}" + (f" replica {unit.replica}" if several else "") for unit in graph.units]
    order = [int(vertex) for chain in graph.chains for vertex in chain]
    names = {}
    for chain, unit in zip(graph.chains, units, strict=True):
        for place, number in enumerate(chain.tolist()):
            names[number] = f"{_name(graph.vertices[number], chunks, place)} on {unit}"
    implied = {(a, b) for chain in graph.chains for a, b in itertools.pairwise(chain.tolist())}
    return GraphFile(
        units=tuple(GraphUnit(name, unit.stage, unit.replica) for name, unit in zip(units, graph.units, strict=True)),
        operations=tuple(_operation(graph.vertices[i], names[i], units) for i in order),
        edges=tuple(
            GraphEdge(names[a], names[b], lag_s)
            for (a, b), lag_s in zip(graph.edges.tolist(), graph.lag_s.tolist(), strict=True)
            if lag_s or (a, b) not in implied
        ),
        chunks=chunks if chunks > 1 else None,
    )


def save_graph(content: GraphFile, path: str | os.PathLike[str]) -> None:
    """Write a graph file; a reader never sees half of it.

    Raises:
        UserError: the file cannot be written.
    """
    write_json(content.to_dict(), path)


def _operation(vertex: Vertex, name: str, units: list[str]) -> GraphOperation:
    return GraphOperation(
        name=name,
        unit=units[vertex.unit],
        instruction=vertex.kind,
        chunk=vertex.chunk,
        microbatch=vertex.microbatch,
        role=vertex.role,
    )


def _name(vertex: Vertex, chunks: int, place: int) -> str:
    if vertex.kind in ("forward", "backward"):
        return f"{vertex.kind[0].upper()}{f'{vertex.chunk}.' if chunks > 1 else ''}{vertex.microbatch}"
    return f"{vertex.kind} {place}"
