"""Linear programs, solved exactly by HiGHS (highspy) on one thread."""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csc_matrix

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


def solve(program: LinearProgram) -> Optimum:
    """Solve a linear program to optimality.

    Raises:
        SolverError: infeasible, unbounded, or not solved.
    """
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.row_lower)
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
    columns = csc_matrix(program.matrix)
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
        np.array(found.col_value, dtype=np.float64),
        np.array(found.row_dual, dtype=np.float64),
        float(solver.getInfo().objective_function_value),
    )
