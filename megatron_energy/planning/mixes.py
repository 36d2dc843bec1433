"""The best mix of clocks for given segments, as if clocks were continuous.

It is the optimum of the linear program of tied clocks (:mod:`megatron_energy.planning.tied_lp`). Where segments change a little at a time,
each program starts from the basis of one like it, and takes a third of the time.
"""

from dataclasses import dataclass

import numpy as np

from megatron_energy.pipeline.graph import FloatArray
from megatron_energy.planning.lp import BASIC, LOWER, Basis, Solver, SolverError
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.tied_lp import TiedProgram, tied_program
from megatron_energy.planning.ties import Ties


@dataclass(frozen=True)
class Mixed:
    """The optimum of given segments, each with a mix of clocks.

    Attributes:
        ties: a group per segment.
        energy_j: least energy, one GPU per unit, up to what does not depend on clocks.
        time_s: (n,) seconds of every vertex in the mix.
        column: (G,) mean clock column of every segment.
        price_w: (n,) J that one second more of a vertex costs.
        deadline_w: J that one second until the deadline is worth.
        tied, basis: the program, and where its optimum is.
    """

    ties: Ties
    energy_j: float
    time_s: FloatArray
    column: FloatArray
    price_w: FloatArray
    deadline_w: float
    tied: TiedProgram
    basis: Basis


def mixed(problem: Problem, ties: Ties, near: Mixed | None = None) -> Mixed | None:
    """Solve for the best mix of clocks of every group; None: no clocks of these segments keep the deadline.

    Args:
        problem: whose clocks.
        ties: a group per segment.
        near: the optimum of about the same segments of the same problem, to start from: that takes less time. The least energy is the same;
            where several mixes have it, another one may be found.
    """
    tied = tied_program(problem, ties)
    solver = Solver(tied.program, tied.units)
    if near is not None and near.tied.groups == tied.groups:
        solver.start_from(_carried(near, tied))
    try:
        optimum = solver.solve()
    except SolverError:
        return None
    share, clocked = tied.shares(optimum.x), np.flatnonzero(ties.group >= 0)
    leaving = np.concatenate([problem.graph.edges[:, 0], problem.paths.sinks])
    dual_w = np.maximum(optimum.row_dual[: len(leaving)], 0.0)
    time_s = problem.durations(ties.free)
    time_s[clocked] = (share[ties.group[clocked]] * problem.tables.time_s[clocked]).sum(axis=1)
    return Mixed(
        ties,
        optimum.objective,
        time_s,
        share @ np.arange(share.shape[1]),
        np.bincount(leaving, dual_w, len(time_s)).astype(np.float64),
        float(dual_w[len(problem.graph.edges) :].sum()),
        tied,
        solver.basis,
    )


def _carried(near: Mixed, tied: TiedProgram) -> Basis:
    """A basis for a program with as many groups: that of the other one; durations that it does not have are basic."""
    before, basis = near.tied, near.basis
    known = {key: index for index, key in enumerate(_keys(before))}
    kinds, known_kinds = len(tied.kinds.group), len(before.kinds.group)
    starts, rows = before.first_share - known_kinds, len(basis.row) - before.groups - known_kinds
    duration, row = np.full(kinds, BASIC), np.full(kinds, LOWER)
    for index, key in enumerate(_keys(tied)):
        if key in known:
            duration[index], row[index] = basis.column[starts + known[key]], basis.row[rows + known[key]]
    return Basis(
        np.concatenate([basis.column[:starts], duration, basis.column[before.first_share :]]),
        np.concatenate([basis.row[:rows], row, basis.row[rows + known_kinds :]]),
    )


def _keys(tied: TiedProgram) -> list[tuple[int, bytes]]:
    return [(group, times.tobytes()) for group, times in zip(tied.kinds.group.tolist(), tied.kinds.time_s, strict=True)]
