"""Linear programs, solved exactly by HiGHS (highspy) on one thread."""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csc_matrix, diags

from megatron_energy.pipeline.graph import FloatArray, IntArray

LOWER, BASIC = int(highspy.HighsBasisStatus.kLower), int(highspy.HighsBasisStatus.kBasic)
"""Codes of a :class:`Basis`: at the lower bound; basic."""

DEVEX = 1

WALL = 10.0
"""Seconds that may pass for a CPU second of a search: HiGHS' own limit counts the former, and training may leave the thread few."""


class SolverError(RuntimeError):
    """HiGHS did not find an optimum; the message carries its status."""


@dataclass(frozen=True)
class LinearProgram:
    """Minimise ``cost . x`` subject to ``matrix x`` within row bounds and ``x`` within column bounds.

    Attributes:
        cost: (c,).
        lower, upper: (c,) column bounds.
        matrix: (r, c) sparse.
        row_lower, row_upper: (r,) row bounds.
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    matrix: Any
    row_lower: FloatArray
    row_upper: FloatArray


@dataclass(frozen=True)
class Units:
    """What counts as 1: HiGHS' tolerances are absolute (1e-7), and iterations last from microseconds to hours.

    Attributes:
        column: (c,) unit of each variable.
        row: (r,) unit of each row.
        objective: unit of the cost.
    """

    column: FloatArray
    row: FloatArray
    objective: float


@dataclass(frozen=True)
class Optimum:
    """An optimal solution.

    Attributes:
        x: (c,) values.
        row_dual: (r,) change of the objective per unit of the row's active bound.
        objective: its value.
        iterations: steps of the simplex method that it took.
    """

    x: FloatArray
    row_dual: FloatArray
    objective: float
    iterations: int = 0


class _Quiet(highspy.Highs):
    """HiGHS without its banner: the usual constructor prints it before output can be turned off."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
        self.silent()


@dataclass(frozen=True)
class Basis:
    """Which variables and rows are basic, in HiGHS' codes (:class:`highspy.HighsBasisStatus`): where a solution can start from.

    Attributes:
        column: (c,) codes.
        row: (r,) codes.
    """

    column: IntArray
    row: IntArray


class Solver:
    """A linear program that stays in HiGHS: after a change it is solved again from the basis that it has.

    Args:
        program: what to solve.
        units: change how it is computed, not what it means; None: all are 1.
    """

    def __init__(self, program: LinearProgram, units: Units | None = None) -> None:
        if units is None:
            units = Units(np.ones(len(program.cost)), np.ones(len(program.row_lower)), 1.0)
        self._units = units
        self._highs = _Quiet()
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("presolve", "off")  # presolve takes longer than it saves on these programs
        self._highs.passModel(_model(program, units))

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        """Change the bounds of a variable."""
        unit = float(self._units.column[column])
        self._highs.changeColBounds(column, lower / unit, upper / unit)

    @property
    def basis(self) -> Basis:
        """Of the last solution."""
        found = self._highs.getBasis()
        return Basis(*(np.array([int(code) for code in part], dtype=np.int64) for part in (found.col_status, found.row_status)))

    def start_from(self, basis: Basis) -> None:
        """Begin the next solution there. It need not be a valid basis: HiGHS mends it."""
        codes = {int(code): code for code in highspy.HighsBasisStatus.__members__.values()}
        start = highspy.HighsBasis()
        start.col_status, start.row_status = [codes[c] for c in basis.column.tolist()], [codes[c] for c in basis.row.tolist()]
        start.valid = start.alien = True  # alien: to be checked
        self._highs.setBasis(start)
        # The default weights of the dual simplex method take a solve per row to set up where the basis is not trivial.
        self._highs.setOptionValue("simplex_dual_edge_weight_strategy", DEVEX)

    def solve(self) -> Optimum:
        """Solve to optimality.

        Raises:
            SolverError: infeasible, unbounded, or not solved.
        """
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"the linear program has no optimum: {self._highs.modelStatusToString(status)}")
        found = self._highs.getSolution()
        return Optimum(
            np.array(found.col_value, dtype=np.float64) * self._units.column,
            np.array(found.row_dual, dtype=np.float64) * self._units.objective / self._units.row,
            float(self._highs.getInfo().objective_function_value) * self._units.objective,
            int(self._highs.getInfo().simplex_iteration_count),
        )


def solve(program: LinearProgram, units: Units | None = None) -> Optimum:
    """Solve a linear program to optimality; units change how it is computed, not what it means (None: all are 1).

    Raises:
        SolverError: infeasible, unbounded, or not solved.
    """
    return Solver(program, units).solve()


def solve_integer(
    program: LinearProgram, units: Units, integral: IntArray, start: FloatArray, *, nodes: int, time_limit_s: float
) -> tuple[FloatArray, bool]:
    """Search for a good solution of a program some of whose variables are whole numbers, by branch and bound from a known one.

    Args:
        program: what to solve.
        units: 1 for whole variables.
        integral: (i,) their columns.
        start: (c,) a solution.
        nodes: at most; the same number finds the same solution.
        time_limit_s: CPU seconds, a safety net; a program that meets it finds another solution on a faster machine.

    Returns:
        ((c,) the best solution found, ``start`` where there is no better one; False if time ran out before nodes did).
    """
    highs = _Quiet()
    for name, value in {"threads": 1, "mip_max_nodes": nodes, "time_limit": WALL * time_limit_s, "mip_rel_gap": 1e-6}.items():
        highs.setOptionValue(name, value)
    model = _model(program, units)
    highs.passModel(model)
    highs.changeColsIntegrality(len(integral), integral.astype(np.int32), np.array([highspy.HighsVarType.kInteger] * len(integral)))
    known = highspy.HighsSolution()
    known.col_value = (start / units.column).tolist()
    _run_from(highs, known)
    if np.isfinite(highs.getInfo().mip_gap) and not _tells_its_optimum(highs, model):
        highs.setOptionValue("presolve", "off")
        _run_from(highs, known)
    in_time = highs.getModelStatus() != highspy.HighsModelStatus.kTimeLimit
    if not np.isfinite(highs.getInfo().mip_gap):
        return start, in_time  # rounding made even the start miss the deadline
    return np.array(highs.getSolution().col_value, dtype=np.float64) * units.column, in_time


def _run_from(highs: _Quiet, known: Any) -> None:
    highs.clearSolver()
    highs.setSolution(known)
    highs.run()


def _tells_its_optimum(highs: _Quiet, model: Any) -> bool:
    """HiGHS 1.16 returns the start as it was given where presolve alone makes the best solution of it, with that one's objective."""
    objective = float(highs.getInfo().objective_function_value)
    return float(np.dot(model.col_cost_, highs.getSolution().col_value)) <= objective + 1e-9 * max(1.0, abs(objective))


def _model(program: LinearProgram, units: Units) -> Any:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.row_lower)
    model.col_cost_ = program.cost * units.column / units.objective
    model.col_lower_, model.col_upper_ = program.lower / units.column, program.upper / units.column
    model.row_lower_, model.row_upper_ = program.row_lower / units.row, program.row_upper / units.row
    columns = csc_matrix(diags(1 / units.row) @ program.matrix @ diags(units.column))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = columns.indptr.astype(np.int32)
    model.a_matrix_.index_ = columns.indices.astype(np.int32)
    model.a_matrix_.value_ = columns.data.astype(np.float64)
    return model
