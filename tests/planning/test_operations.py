import itertools

import numpy as np
import pytest

from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning import beam
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


@pytest.mark.parametrize("seed", range(4))
def test_a_search_wide_enough_finds_the_optimum(seed, monkeypatch):
    monkeypatch.setattr(beam, "ALIKE", 1e-6)
    rng = np.random.default_rng(seed)
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), stage_s=tuple(rng.uniform(0.5, 1.5, 2)), slowdown=0.1)
    search = beam.Beam(problem, bound(problem))
    clocks = search.search(problem.baseline_clocks, search.chosen, 3**8, 0.0)
    assert problem.effective_j(clocks) == pytest.approx(cheapest(problem), rel=1e-12)


@pytest.mark.parametrize("first", range(0, 36, 9))
def test_a_window_is_searched_and_the_rest_is_left(first):
    problem = small_problem(3, 2, 3)
    search = beam.Beam(problem, bound(problem))
    before = per_operation(problem, bound(problem), work=0)
    free = np.zeros(len(before), dtype=bool)
    free[search.order[first : first + 9]] = True
    after = search.search(np.where(free, 0, before), free, 200, 0.1)
    assert after[~free].tolist() == before[~free].tolist()
    assert problem.meets_deadline(problem.iteration_s(after))
    assert problem.effective_j(after) <= problem.effective_j(before) * (1 + 1e-12)


def test_no_plan_where_none_is_in_time():
    problem = chain_problem([[1, 1.5], [1, 1.5]], [[100, 60], [100, 70]], slowdown=0.25)
    search = beam.Beam(problem, bound(problem))
    first = np.array([True, False])
    assert search.search(np.array([0, 1]), first, 10, 0.2).tolist() == [0, 1]  # 1 s is left for it
    late = chain_problem([[1, 1.5], [1, 2]], [[100, 60], [100, 70]], slowdown=0.25)
    assert beam.Beam(late, bound(late)).search(np.array([0, 1]), first, 10, 0.2) is None  # half a second is
    assert search.search(np.array([0, 1]), ~search.chosen, 10, 0.2) is None  # nothing to choose


def test_searching_never_costs():
    problem = small_problem(4, 1, 8, slowdown=0.01)
    least = bound(problem)
    quick, searched = per_operation(problem, least, work=0), per_operation(problem, least, work=100_000)
    assert problem.meets_deadline(problem.iteration_s(searched))
    assert problem.effective_j(searched) < problem.effective_j(quick)
