"""All clocks of a plan chosen together, its switches kept where they are: a mixed-integer program.

Clocks come in steps, and with many paths critical at once a plan whose clocks were found one by one wastes up to a few percent of what
it could save. The linear program of tied clocks (:mod:`megatron_energy.planning.tied_lp`), with one group per segment and whole clocks near
its optimum, is small enough for branch and bound. The plan to start from is one of its feasible points, so that a search cut short does no
harm.
"""

from dataclasses import replace

import numpy as np
from scipy.sparse import coo_matrix, hstack, identity, vstack

from megatron_energy.pipeline.graph import FloatArray, IntArray
from megatron_energy.planning.lp import LinearProgram, Units, solve, solve_integer
from megatron_energy.planning.priced_start import segments_of, sped_up
from megatron_energy.planning.sequences import Space
from megatron_energy.planning.tied_lp import TiedProgram, tied_program
from megatron_energy.planning.ties import Ties

WIDTH, NARROW = 2, 1
"""Columns around the linear program's mean clock that are allowed, besides the plan's own; in large jobs fewer."""

LARGE = 800  # vertices


def best_clocks(space: Space, state: IntArray, nodes: int, time_limit_s: float) -> tuple[IntArray, bool]:
    """Choose the clocks of all segments of a plan anew.

    Args:
        space: the sequences to choose from.
        state: (n,) clock columns in time.
        nodes: of branch and bound, at most.
        time_limit_s: CPU seconds, a safety net; a program that meets it finds another plan on a faster machine.

    Returns:
        ((n,) clock columns in time with the same switches or fewer, ``state`` where none were found; whether time was enough).
    """
    problem = space.problem
    ties = segments_of(problem, state, space.members)
    tied = tied_program(problem, ties)
    program, units = _with_raises(space, ties, tied)
    optimum = solve(program, units)
    share = tied.shares(optimum.x)
    mean = share @ np.arange(share.shape[1])
    columns = ties.columns(state)
    allowed = np.abs(np.arange(share.shape[1]) - mean[:, np.newaxis]) <= (WIDTH if len(state) < LARGE else NARROW)
    allowed[:, space.clocks :] = False  # lower clocks save nothing
    allowed[np.arange(ties.count), columns] = True
    upper = program.upper.copy()
    upper[tied.first_share : tied.first_share + allowed.size] = allowed.ravel()
    start = np.concatenate([tied.point(problem, ties, columns), _raises(space, ties, columns)])
    integral = tied.first_share + np.flatnonzero(allowed.ravel())
    found, in_time = solve_integer(replace(program, upper=upper), units, integral, start, nodes=nodes, time_limit_s=time_limit_s)
    kept = sped_up(problem, ties, tied.shares(found).argmax(axis=1))  # the solver's deadline is soft by 1e-7
    return (state if kept is None else ties.clocks(kept)), in_time


def _boundaries(space: Space, ties: Ties) -> tuple[IntArray, IntArray, IntArray]:
    """(B,) vertices at whose begin a segment begins, the groups before them and their own."""
    found = [(v, ties.group[u], ties.group[v]) for m in space.members for u, v in zip(np.roll(m, 1), m, strict=True)]
    changed = np.array([row for row in found if row[1] != row[2]], dtype=np.int64).reshape(-1, 3)
    return changed[:, 0], changed[:, 1], changed[:, 2]


def _raises(space: Space, ties: Ties, columns: IntArray) -> FloatArray:
    """(B,) J that each boundary costs for a raise that comes early; empty where it costs nothing."""
    if space.raise_j is None:
        return np.zeros(0)
    vertex, before, after = _boundaries(space, ties)
    return np.maximum(space.raise_j[vertex, columns[after]] - space.raise_j[vertex, columns[before]], 0.0)


def _with_raises(space: Space, ties: Ties, tied: TiedProgram) -> tuple[LinearProgram, Units]:
    """The program with a variable per boundary, no less than what its raise costs: the difference of its two clocks' costs, or 0."""
    if space.raise_j is None:
        return tied.program, tied.units
    vertex, before, after = _boundaries(space, ties)
    count, clocks, rows = len(vertex), space.clocks, np.arange(len(vertex))
    width = tied.kinds.time_s.shape[1]
    unit_j = tied.units.objective
    row = np.concatenate([np.repeat(rows, clocks), np.repeat(rows, clocks)])
    column = tied.first_share + np.concatenate([(group[:, np.newaxis] * width + np.arange(clocks)).ravel() for group in (after, before)])
    value = np.concatenate([-space.raise_j[vertex].ravel(), space.raise_j[vertex].ravel()])
    program, total = tied.program, len(tied.program.cost)
    linked = coo_matrix((value, (row, column)), shape=(count, total))
    free = coo_matrix((program.matrix.shape[0], count))
    widened = LinearProgram(
        cost=np.concatenate([program.cost, np.ones(count)]),
        lower=np.concatenate([program.lower, np.zeros(count)]),
        upper=np.concatenate([program.upper, np.full(count, np.inf)]),
        matrix=vstack([hstack([program.matrix, free]), hstack([linked, identity(count)])]),
        row_lower=np.concatenate([program.row_lower, np.zeros(count)]),
        row_upper=np.concatenate([program.row_upper, np.full(count, np.inf)]),
    )
    units = Units(
        np.concatenate([tied.units.column, np.full(count, unit_j)]), np.concatenate([tied.units.row, np.full(count, unit_j)]), unit_j
    )
    return widened, units
