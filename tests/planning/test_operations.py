import itertools

import numpy as np
import pytest

from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import bound
from megatron_energy.planning.operations import per_operation
from tests.planning.pipelines import chain_problem, small_problem


def test_by_hand():
    # half a second to spare: exactly one operation can take 1.5 instead of 1 s
    problem = chain_problem([[1, 1.5], [1, 1.5]], [[100, 60], [100, 70]], slowdown=0.25)
    assert per_operation(problem, bound(problem)).tolist() == [1, 0]


def cheapest(problem):
    n, columns = problem.tables.time_s.shape
    states = np.array(list(itertools.product(range(columns), repeat=n))).T
    rows = np.arange(n)[:, np.newaxis]
    in_time = makespans(problem.graph, problem.tables.time_s[rows, states]) <= problem.deadline_s * (1 + 1e-12)
    return problem.cost_j[rows, states].sum(axis=0)[in_time].min()


@pytest.mark.parametrize("seed", range(6))
def test_close_to_the_best_of_all_and_in_time(seed):
    rng = np.random.default_rng(seed)
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), stage_s=tuple(rng.uniform(0.5, 1.5, 2)), slowdown=0.1)
    clocks = per_operation(problem, bound(problem))
    assert problem.meets_deadline(problem.iteration_s(clocks))
    best_j, baseline_j = cheapest(problem), problem.effective_j(problem.baseline_clocks)
    assert best_j <= problem.effective_j(clocks) <= best_j + 0.25 * (baseline_j - best_j)


def test_no_single_change_would_help():
    problem = small_problem(3, 2, 6)
    clocks = per_operation(problem, bound(problem))
    here = problem.effective_j(clocks)
    for v in range(len(clocks)):
        for column in range(4):
            other = clocks.copy()
            other[v] = column
            assert problem.effective_j(other) >= here - 1e-9 or not problem.meets_deadline(problem.iteration_s(other))


def test_rounding_that_is_late_is_repaired():
    problem = small_problem(2, 1, 3)
    least = bound(problem)
    object.__setattr__(least, "duration_s", problem.tables.time_s[:, -1])  # as if everything could run at the lowest clock
    clocks = per_operation(problem, least)
    assert problem.meets_deadline(problem.iteration_s(clocks))
    assert problem.effective_j(clocks) <= problem.effective_j(problem.baseline_clocks)
