"""Tables: time and energy of every vertex of a graph at every clock of one common grid."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import Graph, Vertex
from megatron_energy.profiles.profile import Curve, FloatArray, IntArray, Profile


@dataclass(frozen=True)
class Tables:
    """What each of n vertices costs at each of F clocks, one GPU.

    Attributes:
        clock_mhz: (F,) common clocks, highest first.
        time_s: (n, F) seconds.
        energy_j: (n, F) joules of one GPU.
    """

    clock_mhz: IntArray
    time_s: FloatArray
    energy_j: FloatArray


def build_tables(graph: Graph, profile: Profile, chunks: int | None = None) -> Tables:
    """Tables of ``graph`` from ``profile``; joins take no time and no energy.

    All curves are cut to the clocks that every one of them has. A curve of one point (a fixed-time step) holds at every clock.

    Args:
        graph: vertices of any kind.
        profile: curves per (stage, chunk, instruction); those of a whole stage are split evenly over its chunks.
        chunks: model chunks per stage; None: as many as the graph uses.

    Raises:
        UserError: a stage, chunk or instruction is missing, or the curves have no clock in common.
    """
    count = chunks or 1 + max((vertex.chunk for vertex in graph.vertices), default=0)
    kinds = [_kind(graph, vertex) for vertex in graph.vertices]
    curves = {kind: curve_of(profile, *kind, count) for kind in dict.fromkeys(kinds) if kind is not None}
    return tables_of([None if kind is None else curves[kind] for kind in kinds])


def tables_of(curves: Sequence[Curve | None]) -> Tables:
    """Tables of n vertices from a curve for each; None takes no time and no energy.

    All curves are cut to the clocks that every one of them has. A curve of one point (a fixed-time step) holds at every clock.

    Raises:
        UserError: the curves have no clock in common.
    """
    distinct = {id(curve): curve for curve in curves if curve is not None}
    clocks = _common_clocks(distinct.values())
    columns = {key: _columns(curve, clocks) for key, curve in distinct.items()}
    time_s, energy_j = np.zeros((len(curves), len(clocks))), np.zeros((len(curves), len(clocks)))
    for index, curve in enumerate(curves):
        if curve is not None:
            time_s[index], energy_j[index] = curve.time_s[columns[id(curve)]], curve.energy_j[columns[id(curve)]]
    return Tables(clocks, time_s, energy_j)


def curve_of(profile: Profile, stage: int, chunk: int, instruction: str, chunks: int) -> Curve:
    """The curve of one operation: the chunk's own, else the whole stage's split evenly over ``chunks``; chunk -1 is the whole stage.

    Raises:
        UserError: the profile has neither.
    """
    exact = profile.curves.get((stage, chunk, instruction))
    if exact is not None:
        return exact
    whole = profile.curves.get((stage, -1, instruction))
    if whole is None:
        where = f"stage {stage}" + (f", chunk {chunk}" if chunk >= 0 else "")
        raise UserError(
            f"the profile has no {instruction} of {where} (it has {_stages(profile, instruction)}): add its rows or plan what it covers"
        )
    share = 1.0 / chunks if chunk >= 0 else 1.0
    return Curve(whole.clock_mhz, whole.time_s * share, whole.energy_j * share)


def transfer_time_s(profile: Profile) -> float:
    """Seconds of one pipeline transfer: the slowest stage's ``p2p`` time at its highest clock, 0 where the profile has none."""
    return max((float(curve.time_s[0]) for (_, _, instruction), curve in profile.curves.items() if instruction == "p2p"), default=0.0)


def has_instruction(profile: Profile, instruction: str) -> bool:
    """Whether any stage has a curve of this instruction."""
    return any(name == instruction for _, _, name in profile.curves)


_Kind = tuple[int, int, str]


def _kind(graph: Graph, vertex: Vertex) -> _Kind | None:
    if vertex.kind == "join":
        return None
    return graph.units[vertex.unit].stage, vertex.chunk, vertex.kind


def _stages(profile: Profile, instruction: str) -> str:
    stages = sorted({stage for stage, _, name in profile.curves if name == instruction})
    return f"stages {', '.join(map(str, stages))}" if stages else "none at all"


def _common_clocks(curves: Collection[Curve]) -> IntArray:
    grids = [curve.clock_mhz for curve in curves if len(curve.clock_mhz) > 1]
    if not grids:  # every curve has one point: one clock, which must be the same
        grids = [curve.clock_mhz for curve in curves if curve.clock_mhz[0] > 0]
    common = reduce(np.intersect1d, grids) if grids else np.zeros(0, dtype=np.int64)
    if not len(common):
        raise UserError("the profile's operations were not measured at any common clock: measure every operation at the same clocks")
    return common[::-1].astype(np.int64)


def _columns(curve: Curve, clocks_mhz: IntArray) -> IntArray:
    """Column of the curve for each clock; a curve of one point is constant."""
    if len(curve.clock_mhz) == 1:
        return np.zeros(len(clocks_mhz), dtype=np.int64)
    ascending = curve.clock_mhz[::-1]
    return len(ascending) - 1 - np.searchsorted(ascending, clocks_mhz).astype(np.int64)
