"""The two simplest policies to compare with: the GPUs as found, and one clock for all of them."""

import numpy as np

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.candidates import cheapest_in_time
from megatron_energy.planning.problem import Problem


def maximum(problem: Problem) -> IntArray:
    """(n,) clock columns of the baseline: nothing is changed."""
    return np.array(problem.baseline_clocks, dtype=np.int64)


def uniform(problem: Problem) -> IntArray:
    """(n,) clock columns, all the same: the clock with the least energy that keeps the deadline; exact, as every clock is tried."""
    n, clocks = problem.tables.time_s.shape
    states = np.repeat(np.arange(clocks, dtype=np.int64)[:, np.newaxis], n, axis=1)
    return np.asarray(states[cheapest_in_time(problem, states)])
