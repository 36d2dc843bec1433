"""Time to spare and exchanges between neighbours: by hand, and against trying them all."""

import numpy as np
import pytest

from megatron_energy.planning.bound import bound
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.slack import STEPS, exchanges, spare_s
from tests.planning.pipelines import chain_problem, make_graph, small_problem
from tests.planning.problems import problem_of, profile_of, random_profile


def test_spare_time_by_hand():
    # Two operations of 1 s on the way to 2.5 s, the second 0.25 s after the first.
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [100, 60]], given_deadline_s=2.5)
    object.__setattr__(problem, "graph", make_graph(problem.graph.units, problem.graph.vertices, [(0, 1)], [range(2)], [0.25]))
    assert spare_s(problem, np.array([0, 0])) == pytest.approx([0.25, 0.25])
    assert spare_s(problem, np.array([1, 0])) == pytest.approx([-0.75, -0.75])


@pytest.mark.parametrize("seed", range(4))
def test_a_vertex_may_take_its_spare_time_and_no_more(seed):
    rng = np.random.default_rng(seed)
    problem = problem_of(random_profile(rng, 3, 4), 4, slowdown=0.03, p2p="batched")
    clocks = rng.integers(0, 2, len(problem.graph.vertices))
    clocks = np.where(rng.random(len(clocks)) < 0.2, clocks, 0)
    duration_s = problem.durations(clocks)
    for vertex, spare in enumerate(spare_s(problem, clocks)):
        longer = problem.tables.time_s.copy()
        for extra_s, in_time in ((spare - 1e-9, True), (spare + 1e-6, False)):
            longer[vertex, :] = duration_s[vertex] + extra_s
            changed = type(problem)(problem.graph, type(problem.tables)(problem.tables.clock_mhz, longer, problem.tables.energy_j), 0.0)
            assert (changed.iteration_s(clocks) <= problem.deadline_s) == in_time


def test_exchange_by_hand():
    # 1 s + 2 s until 3 s: the first saves 40 J in 2 s, the second costs 10 J more in 1 s.
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [70, 60]], given_deadline_s=3.0)
    found = exchanges(problem, np.array([0, 1]), np.array([True, True]))
    assert found.columns.tolist() == [[1, 0]]
    assert found.gain_j.tolist() == pytest.approx([-30.0])
    for chosen in ([True, False], [False, True]):  # one of them has no clock to choose
        assert exchanges(problem, np.array([0, 1]), np.array(chosen)).gain_j.tolist() == [0.0]
    assert per_operation(problem, bound(problem)).tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("chunks", "p2p"), [(1, "ideal"), (2, "overlap")])
def test_the_best_exchange_is_found(seed, chunks, p2p):
    rng = np.random.default_rng(seed)
    problem = problem_of(random_profile(rng, 2, 6), 4, chunks=chunks, p2p=p2p, slowdown=0.04)
    clocks = per_operation(problem, bound(problem))
    clocks = np.clip(clocks + rng.integers(-1, 1, len(clocks)), 0, 5)  # faster than it has to be, here and there
    assert problem.meets_deadline(problem.iteration_s(clocks))
    found = exchanges(problem, clocks, np.ones(len(clocks), dtype=bool))
    for edge, gain_j in zip(problem.graph.edges, found.gain_j, strict=True):
        gains_j = [0.0]
        for step in STEPS:
            other = clocks.copy()
            other[edge] += step
            if other.min() >= 0 and other.max() < 6 and problem.iteration_s(other) <= problem.deadline_s:
                gains_j.append(problem.effective_j(other) - problem.effective_j(clocks))
        assert gain_j == pytest.approx(min(gains_j), abs=1e-9)


def test_a_clock_per_operation_is_close_to_the_bound():
    problem = problem_of(profile_of([1.0, 1.2, 0.9], tuple(range(1400, 700, -15))), 12, chunks=2, p2p="overlap")
    least = bound(problem)
    plan = problem.evaluate(per_operation(problem, least, work=200_000))
    assert problem.saved_percent(least.energy_j) - plan.saved_percent < 0.15
    assert plan.slowdown_percent <= 0


def test_no_exchange_is_left():
    problem = small_problem(3, 2, 6)
    clocks = per_operation(problem, bound(problem))
    found = exchanges(problem, clocks, np.ones(len(clocks), dtype=bool))
    assert found.gain_j.min() >= -1e-9 * problem.baseline_energy_j
