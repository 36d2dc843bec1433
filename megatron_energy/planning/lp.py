"""Linear programs, solved exactly by HiGHS (highspy) on one thread."""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csc_matrix, diags

from megatron_energy.pipeline.graph import FloatArray


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
    """

    x: FloatArray
    row_dual: FloatArray
    objective: float


class _Quiet(highspy.Highs):
    """HiGHS without its banner: the usual constructor prints it before output can be turned off."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
        self.silent()


def solve(program: LinearProgram, units: Units | None = None) -> Optimum:
    """Solve a linear program to optimality; units change how it is computed, not what it means (None: all are 1).

    Raises:
        SolverError: infeasible, unbounded, or not solved.
    """
    if units is None:
        units = Units(np.ones(len(program.cost)), np.ones(len(program.row_lower)), 1.0)
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
    solver = _Quiet()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")  # presolve takes longer than it saves on these programs
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolverError(f"the linear program has no optimum: {solver.modelStatusToString(status)}")
    found = solver.getSolution()
    return Optimum(
        np.array(found.col_value, dtype=np.float64) * units.column,
        np.array(found.row_dual, dtype=np.float64) * units.objective / units.row,
        float(solver.getInfo().objective_function_value) * units.objective,
    )
