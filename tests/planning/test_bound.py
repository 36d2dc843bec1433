"""The bound against hand calculation, weak and strong duality, another formulation, and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import SolverError, bound
from megatron_energy.planning.lp import LinearProgram, Units, solve
from megatron_energy.profiles.curves import lower_hull
from tests.planning.pipelines import chain_problem, small_problem


def test_by_hand():
    # 1 s of slack for one operation of two: it may take 2 s for 40 J less; a second operation takes no part (one clock is best)
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [100, 60]], slowdown=0.25)
    found = bound(problem)
    assert found.iteration_s == pytest.approx(2.5)
    assert found.energy_j == pytest.approx(200 - 0.5 * 40)  # half a second more, 40 J per second
    assert found.deadline_price_w == pytest.approx(40.0)
    assert found.price_w == pytest.approx([40.0, 40.0])
    assert found.duration_s.sum() == pytest.approx(2.5)
    assert (found.weights * problem.tables.time_s).sum(axis=1) == pytest.approx(found.duration_s)


def test_lag_counts_as_time():
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [100, 60]], slowdown=0.25)
    object.__setattr__(problem.graph, "lag_s", np.array([2.0]))  # a transfer of two seconds: the deadline is 1.25 x 4 s
    assert bound(problem).energy_j == pytest.approx(200 - 40.0)


def test_finishing_early_pays_where_waiting_costs():
    # the second clock is faster and costs less: the horizon is not the deadline
    problem = chain_problem([[2, 1]], [[100, 95]], blocking_power_w=10)
    found = bound(problem)
    assert found.iteration_s == pytest.approx(1.0)
    assert found.energy_j == pytest.approx(95.0)
    assert found.deadline_price_w == pytest.approx(0.0, abs=1e-9)


def dense_optimum(problem):
    """Another formulation: ends as variables, weights over all clocks, the horizon fixed at the deadline or left free; by scipy."""
    n, columns = problem.tables.time_s.shape
    rows, right = [], []
    for (a, b), lag in zip(problem.graph.edges.tolist(), problem.graph.lag_s.tolist(), strict=True):
        row = np.zeros(n + 1 + n * columns)
        row[a], row[b] = 1, -1
        row[n + 1 + b * columns : n + 1 + (b + 1) * columns] = problem.tables.time_s[b]
        rows.append(row)
        right.append(-lag)
    for v in range(n):
        first, last = np.zeros(n + 1 + n * columns), np.zeros(n + 1 + n * columns)
        first[v], last[v], last[n] = -1, 1, -1
        first[n + 1 + v * columns : n + 1 + (v + 1) * columns] = problem.tables.time_s[v]
        rows += [first, last]
        right += [0, 0]
    one = np.zeros((n, n + 1 + n * columns))
    for v in range(n):
        one[v, n + 1 + v * columns : n + 1 + (v + 1) * columns] = 1
    cost = np.concatenate([np.zeros(n), [problem.horizon_power_w], problem.cost_j.ravel()])
    limits = [(0, None)] * n + [(problem.earliest_horizon_s, problem.deadline_s)] + [(0, 1)] * (n * columns)
    return linprog(cost, A_ub=np.array(rows), b_ub=right, A_eq=one, b_eq=np.ones(n), bounds=limits, method="highs").fun


@pytest.mark.parametrize("settings_", [{}, {"slowdown": 0.03}, {"straggler": 1.2}, {"slowdown": 2.0}])
def test_other_formulation_has_the_same_optimum(settings_):
    problem = small_problem(3, 2, 3, **settings_)
    assert bound(problem).energy_j == pytest.approx(dense_optimum(problem), rel=1e-9)


def dual_value(problem, found):
    """Lagrangian of the dependency rows at the bound's prices, minimised over everything else: never above any plan's energy."""
    edges, m = problem.graph.edges, len(problem.graph.edges)
    flow, n = found.row_price_w, len(problem.graph.vertices)
    out, into = np.zeros(n), np.zeros(n)
    np.add.at(out, edges[:, 0], flow[:m])
    np.add.at(out, problem.paths.sinks, flow[m:])
    np.add.at(into, edges[:, 1], flow[:m])
    starts = np.minimum(out - into, 0).sum() * problem.deadline_s
    spare = problem.horizon_power_w - flow[m:].sum()
    horizon = min(spare * problem.earliest_horizon_s, spare * problem.deadline_s)
    return (
        (problem.cost_j + out[:, np.newaxis] * problem.tables.time_s).min(axis=1).sum() + flow[:m] @ problem.graph.lag_s + starts + horizon
    )


@pytest.mark.parametrize("settings_", [{}, {"slowdown": 0.03}, {"straggler": 1.2}])
def test_duality_gap_is_zero(settings_):
    problem = small_problem(4, 2, 4, **settings_)
    found = bound(problem)
    assert dual_value(problem, found) == pytest.approx(found.energy_j, rel=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_no_enumerated_plan_is_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), stage_s=tuple(rng.uniform(0.5, 1.5, 2)), slowdown=float(rng.uniform(0, 0.2)))
    n = len(problem.graph.vertices)
    states = np.array(list(itertools.product(range(3), repeat=n)))
    rows = np.arange(n)[:, np.newaxis]
    length_s = makespans(problem.graph, problem.tables.time_s[rows, states.T])
    energy_j = problem.cost_j[rows, states.T].sum(axis=0) + problem.horizon_power_w * length_s
    best = energy_j[length_s <= problem.deadline_s * (1 + 1e-12)].min()
    found = bound(problem)
    assert found.energy_j <= best * (1 + 1e-9)
    assert found.energy_j == pytest.approx(dense_optimum(problem), rel=1e-9)


@pytest.mark.parametrize("factor", [1e-6, 1e5])
def test_units_of_time_and_energy_do_not_matter(factor):
    usual = small_problem(3, 1, 4)
    time_s, energy_j = usual.tables.time_s * factor, usual.tables.energy_j * factor
    object.__setattr__(usual.tables, "time_s", time_s)
    object.__setattr__(usual.tables, "energy_j", energy_j)
    scaled = bound(usual)
    plain = bound(small_problem(3, 1, 4))
    assert scaled.energy_j == pytest.approx(plain.energy_j * factor, rel=1e-9)
    assert scaled.deadline_price_w == pytest.approx(plain.deadline_price_w, rel=1e-6)


def test_hull_points_alone_decide():
    problem = small_problem(2, 1, 2, clocks=(1400, 1300, 1200, 1000, 800))
    found = bound(problem)
    for v, row in enumerate(found.weights):
        used = np.flatnonzero(row > 1e-9)
        assert set(used.tolist()) <= set(lower_hull(problem.tables.time_s[v], problem.cost_j[v]).tolist())
        assert row.sum() == pytest.approx(1.0)


def test_impossible_program_is_told():
    infeasible = LinearProgram(np.ones(1), np.zeros(1), np.ones(1), np.ones((1, 1)), np.array([2.0]), np.array([3.0]))
    with pytest.raises(SolverError, match="nfeasible"):
        solve(infeasible)


def test_solver_units_change_nothing():
    program = LinearProgram(np.array([3.0, -2.0]), np.zeros(2), np.full(2, 5.0), np.array([[1.0, 1.0]]), np.array([1.0]), np.array([4.0]))
    plain, scaled = solve(program), solve(program, Units(np.array([10.0, 0.1]), np.array([7.0]), 100.0))
    assert plain.objective == pytest.approx(-8.0)
    assert scaled.objective == pytest.approx(-8.0)
    assert scaled.x == pytest.approx(plain.x)
    assert scaled.row_dual == pytest.approx(plain.row_dual)


def test_solver_prints_nothing(capfd):
    bound(small_problem())
    assert capfd.readouterr() == ("", "")
