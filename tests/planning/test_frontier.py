"""The frontier: by hand, against bounds solved one by one, and replayed by other code."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline import replay
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.bound import BoundProgram, bound
from megatron_energy.planning.frontier import frontier, segments_planner
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.segments import Effort
from megatron_energy.planning.sequences import clocked_vertices, count_switches
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.tables import build_tables
from tests.planning.pipelines import chain_problem, small_problem
from tests.planning.problems import problem_of, profile_of

TWO_OPERATIONS = ([[1, 2], [1, 2]], [[100, 60], [100, 60]])
"""Each may take a second more for 40 J less: 2 s and 200 J, 3 s and 160 J, 4 s and 120 J."""


def assert_points(points, expected):
    """(iteration time, energy) of every point."""
    assert [point.iteration_s for point in points] == pytest.approx([time_s for time_s, _ in expected])
    assert [point.energy_j for point in points] == pytest.approx([energy_j for _, energy_j in expected])


def test_two_operations_by_hand():
    found = frontier(chain_problem(*TWO_OPERATIONS))
    assert_points(found.points, [(2, 200), (3, 160), (4, 120)])
    for point in found.points:
        assert point.bound_j == pytest.approx(200 - 40 * (point.deadline_s - 2))
    assert found.points[1].price_w == pytest.approx(40)
    assert found.gap_j == pytest.approx(0, abs=1e-6)


def test_a_plan_for_any_time():
    found = frontier(chain_problem(*TWO_OPERATIONS))
    assert [found.at(deadline_s).energy_j for deadline_s in (2, 2.9, 3, 3.5, 4, 100)] == pytest.approx([200, 200, 160, 160, 120, 120])
    with pytest.raises(UserError, match=r"no plan ends within 1.9 s: the fastest takes 2 s"):
        found.at(1.9)


def test_it_ends_where_energy_is_least():
    found = frontier(chain_problem([[1, 2, 3]], [[100, 60, 65]]))
    assert_points(found.points, [(1, 100), (2, 60)])


@pytest.mark.parametrize("waiting_w", [0, 10])
def test_one_clock_is_one_point(waiting_w):
    found = frontier(chain_problem([[1], [2]], [[100], [50]], blocking_power_w=waiting_w))
    assert_points(found.points, [(3, 150)])
    assert found.gap_j == 0


def test_it_begins_at_the_fastest_clocks_even_if_the_baseline_is_slower():
    found = frontier(chain_problem([[2, 1.5, 3]], [[100, 110, 60]]))
    assert_points(found.points, [(1.5, 110), (2, 100), (3, 60)])
    assert found.points[0].iteration_s < found.problem.baseline_s


def test_waiting_for_a_straggler_has_use_for_slower_plans():
    # Alone it is best to run for 1 s and 100 J. Until a straggler's end at 2 s, that and waiting at 30 W is 130 J, the slower clock 110 J.
    problem = chain_problem([[1, 2]], [[100, 110]], blocking_power_w=30)
    found = frontier(problem, straggler_count=5)
    assert_points(found.points, [(1, 100)])
    assert_points(found.for_stragglers, [(2, 110)])
    assert [found.until(end_s).iteration_s for end_s in (1, 1.9, 2, 9)] == pytest.approx([1, 1, 2, 2])
    assert found.at(9).iteration_s == pytest.approx(1)
    assert frontier(problem).for_stragglers == ()


def test_points_for_stragglers_are_what_a_problem_with_that_straggler_gives():
    problem = replace(problem_of(profile_of([1.0, 0.4]), 4), blocking_power_w=150.0)
    found = frontier(problem, 6, straggler_count=8)
    assert len(found.for_stragglers) >= 4
    for point in found.for_stragglers:
        waiting = replace(problem, straggler=point.deadline_s / problem.baseline_s)
        assert point.bound_j == pytest.approx(bound(waiting).energy_j, rel=1e-8)
        assert point.iteration_s <= point.deadline_s
    effective_j = [point.effective_j for point in (*found.points, *found.for_stragglers)]
    assert all(a > b for a, b in pairwise(effective_j))


def test_with_a_straggler_nobody_is_earlier_than_it():
    problem = small_problem(2, 1, 4, straggler=1.1)
    found = frontier(problem, 6)
    assert found.points[0].deadline_s == pytest.approx(1.1 * problem.baseline_s)
    assert found.points[0].bound_j == pytest.approx(bound(problem).energy_j, rel=1e-9)
    for point in found.points:
        end_s = max(point.iteration_s, 1.1 * problem.baseline_s)
        assert point.energy_j == pytest.approx(problem.effective_j(point.clocks) + problem.horizon_power_w * end_s)


JOBS = [(2, 1, 6, "ideal"), (3, 1, 4, "batched"), (2, 2, 4, "overlap"), (3, 2, 6, "overlap-wait")]


@pytest.fixture(scope="module", params=JOBS, ids=str)
def computed(request):
    stages, chunks, microbatches, p2p = request.param
    problem = problem_of(profile_of([1.0, 1.2, 0.9][:stages]), microbatches, chunks=chunks, p2p=p2p)
    return problem, frontier(problem, 12)


def test_bounds_are_those_of_problems_with_these_deadlines(computed):
    problem, found = computed
    for point in found.points:
        assert point.bound_j == pytest.approx(bound(replace(problem, given_deadline_s=point.deadline_s)).energy_j, rel=1e-8)


def test_bounds_fall_and_are_convex(computed):
    problem, found = computed
    assert len(found.points) >= 10
    slopes_w = [(b.bound_j - a.bound_j) / (b.deadline_s - a.deadline_s) for a, b in pairwise(found.points)]
    assert all(slope_w < 0 for slope_w in slopes_w)
    assert all(a <= b + 1e-6 * abs(a) for a, b in pairwise(slopes_w))
    # A tangent at every point is below every other point.
    for a in found.points:
        for b in found.points:
            assert b.bound_j >= a.bound_j - a.price_w * (b.deadline_s - a.deadline_s) - 1e-7 * problem.baseline_energy_j


def test_plans_keep_their_deadline_and_none_beats_another(computed):
    problem, found = computed
    assert all(point.iteration_s <= point.deadline_s * (1 + 1e-11) for point in found.points)
    assert all(a.iteration_s < b.iteration_s and a.energy_j > b.energy_j for a, b in pairwise(found.points))
    assert all(point.energy_j >= point.bound_j - 1e-9 * problem.baseline_energy_j for point in found.points)


def test_every_point_replays_as_claimed(computed):
    problem, found = computed
    rows = np.arange(len(problem.graph.vertices))
    for point in found.points:
        duration_s, energy_j = problem.tables.time_s[rows, point.clocks], problem.tables.energy_j[rows, point.clocks]
        assert replay.replay(problem.graph, duration_s).makespan_s == pytest.approx(point.iteration_s, rel=1e-12)
        assert replay.energy_j(problem.graph, duration_s, energy_j, problem.blocking_power_w) == pytest.approx(point.energy_j, rel=1e-12)


def test_between_two_points_the_bound_is_no_further_below_their_line_than_told(computed):
    problem, found = computed
    program, largest_j = BoundProgram(problem), 0.0
    for a, b in pairwise(found.points):
        for share in (0.25, 0.5, 0.75):
            deadline_s = a.deadline_s + share * (b.deadline_s - a.deadline_s)
            below_j = a.bound_j + share * (b.bound_j - a.bound_j) - program.at(deadline_s).energy_j
            assert -1e-7 * problem.baseline_energy_j <= below_j <= found.gap_j + 1e-7 * problem.baseline_energy_j
            largest_j = max(largest_j, below_j)
    assert found.gap_j <= 4 * largest_j + 1e-7 * problem.baseline_energy_j  # it is not told for nothing


def test_more_points_say_more():
    problem = small_problem(2, 2, 4)
    few, many = frontier(problem, 5), frontier(problem, 20)
    assert (len(few.points), len(many.points)) == (5, 20)
    assert many.gap_j < few.gap_j / 4  # a convex curve's distance from its chords falls with the square of their length


def test_plans_with_few_switches():
    problem = problem_of(profile_of([1.0, 1.2]), 6)
    found = frontier(problem, 5, planner=segments_planner(2, Effort(2, 20.0)))
    assert len(found.points) >= 3
    assert all(a.iteration_s < b.iteration_s and a.energy_j > b.energy_j for a, b in pairwise(found.points))
    for point in found.points:
        assert max(count_switches(point.clocks[member]) for member in clocked_vertices(problem)) <= 2
        assert point.iteration_s <= point.deadline_s * (1 + 1e-11)


def test_a_frontier_of_one_point_is_refused():
    with pytest.raises(UserError, match="at least 2 points"):
        frontier(small_problem(), 1)


def test_waiting_at_more_power_ends_the_frontier_earlier():
    # The slower stage 0 is, the longer stage 1 waits.
    profile = profile_of([1.0, 0.4])
    ends_s = []
    for blocking_w in (50.0, 150.0, 250.0):
        problem = replace(problem_of(profile, 4), blocking_power_w=blocking_w)
        ends_s.append(frontier(problem, 4).points[-1].deadline_s)
    assert ends_s[0] > ends_s[1] > ends_s[2]


def test_fifty_points_of_a_published_profile(data_dir):
    profile = load_profile(data_dir / "perseus_sosp24" / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv", 10.0)
    graph = build_graph(Schedule(8, 16, 2, p2p="ideal"))
    problem = Problem(graph, build_tables(graph, profile, 2), 83.64)
    found = frontier(problem, 50)
    assert len(found.points) == 50
    assert all(a.iteration_s < b.iteration_s and a.energy_j > b.energy_j for a, b in pairwise(found.points))
    assert problem.saved_percent(found.points[0].bound_j) == pytest.approx(18.69, abs=0.01)
    assert all(problem.saved_percent(p.bound_j) - problem.saved_percent(p.energy_j) < 0.2 for p in found.points)
    assert 100 * found.gap_j / problem.baseline_energy_j < 0.2
