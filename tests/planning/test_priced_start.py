"""The plan made of the bound's prices: in time, few switches, close to the bound; its parts by hand."""

import numpy as np
import pytest

from megatron_energy.planning import segments
from megatron_energy.planning.bound import bound
from megatron_energy.planning.priced_start import priced_start, segments_of, sped_up
from megatron_energy.planning.segments import Effort, few_switches
from megatron_energy.planning.sequences import Space, clocked_vertices, count_switches
from megatron_energy.planning.tied_search import TiedSearch
from megatron_energy.planning.ties import Ties
from tests.planning.pipelines import chain_problem, small_problem
from tests.planning.problems import problem_of, profile_of, random_profile

CLOCKS_MHZ = tuple(range(1400, 700, -25))


def job(p2p="ideal", chunks=1, **settings):
    return problem_of(profile_of([1.0, 1.2, 0.9], CLOCKS_MHZ), 6, chunks=chunks, p2p=p2p, **settings)


def saved_share(problem, clocks):
    energy_j = problem.energy_j(problem.effective_j(clocks), problem.iteration_s(clocks))
    return problem.saved_percent(energy_j) / problem.saved_percent(bound(problem).energy_j)


@pytest.mark.parametrize("switches", [0, 2, 4, 8])
@pytest.mark.parametrize("settings", [{}, {"p2p": "batched", "chunks": 2}, {"p2p": "overlap", "chunks": 2}, {"straggler": 1.2}], ids=str)
def test_it_keeps_the_deadline_and_the_budget_of_switches(switches, settings):
    problem = job(**settings)
    clocks = priced_start(Space(problem, switches), bound(problem))
    assert problem.meets_deadline(problem.iteration_s(clocks))
    assert max(count_switches(clocks[member]) for member in clocked_vertices(problem)) <= switches
    assert saved_share(problem, clocks) >= -1e-9  # the baseline's at worst


@pytest.mark.parametrize(("settings", "share"), [({}, 0.85), ({"p2p": "batched", "chunks": 2}, 0.7), ({"straggler": 1.2}, 0.97)], ids=str)
def test_it_is_close_to_the_bound(settings, share):
    problem = job(**settings)
    assert saved_share(problem, priced_start(Space(problem, 8), bound(problem))) > share


@pytest.mark.parametrize("seed", range(5))
def test_untidy_profiles(seed):
    problem = problem_of(random_profile(np.random.default_rng(seed), 2, 5, tidy=False), 4, slowdown=0.05)
    clocks = priced_start(Space(problem, 4), bound(problem))
    assert problem.meets_deadline(problem.iteration_s(clocks))
    assert saved_share(problem, clocks) >= -1e-9


def test_exact_where_one_segment_is_all_there_is():
    # 3 s for two operations that take 1 s for 100 J, 1.5 s for 60 J or 2 s for 50 J: both at 1.5 s.
    problem = chain_problem([[1, 1.5, 2]] * 2, [[100, 60, 50]] * 2, slowdown=0.5)
    assert priced_start(Space(problem, 0), bound(problem)).tolist() == [1, 1]


def test_segments_by_hand():
    problem = chain_problem([[1, 2, 3]] * 6, [[3, 2, 1]] * 6)
    member = [np.arange(6)]
    for state, group, count in (
        ([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], 3),
        ([0, 1, 1, 2, 0, 0], [0, 1, 1, 2, 0, 0], 3),  # the segment at the end goes on at the begin
        ([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], 1),
    ):
        found = segments_of(problem, np.array(state), member)
        assert found.count == count
        names = {}
        assert [names.setdefault(number, len(names)) for number in found.group.tolist()] == group


def test_units_share_no_segment():
    problem = small_problem(2, 1, 3)
    found = segments_of(problem, problem.baseline_clocks, clocked_vertices(problem))
    assert found.count == 2
    assert found.group.tolist() == problem.graph.unit_of_vertex.tolist()


def test_late_plans_are_sped_up_where_it_costs_least():
    # Both take 2 s and have 3 s: the second is sped up for 5 J, not the first for 40 J.
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [65, 60]], slowdown=0.5)
    ties = Ties(np.array([0, 1]), 2, problem.baseline_clocks)
    found = sped_up(problem, ties, np.array([1, 1]))
    assert found is not None
    assert found.tolist() == [1, 0]


def test_plans_in_time_stay_as_they_are():
    problem = chain_problem([[1, 2], [1, 2]], [[100, 60], [65, 60]], slowdown=0.5)
    found = sped_up(problem, Ties(np.array([0, 1]), 2, problem.baseline_clocks), np.array([1, 0]))
    assert found is not None
    assert found.tolist() == [1, 0]


def test_what_cannot_be_in_time_is_told():
    problem = chain_problem([[2, 1], [1, 2]], [[100, 60], [65, 60]], given_deadline_s=2.5)  # the first is faster at the lower clock
    assert sped_up(problem, Ties(np.array([0, 1]), 2, problem.baseline_clocks), np.array([0, 1])) is None


def test_single_changes_until_none_helps():
    problem = job(slowdown=0.05)
    ties = segments_of(problem, problem.baseline_clocks, clocked_vertices(problem))
    search = TiedSearch(problem, ties)
    found = search.one_by_one(ties.columns(problem.baseline_clocks))
    best_j = problem.energy_j(problem.effective_j(ties.clocks(found)), problem.iteration_s(ties.clocks(found)))
    assert problem.meets_deadline(problem.iteration_s(ties.clocks(found)))
    assert saved_share(problem, ties.clocks(found)) > 0.1
    for group in range(ties.count):
        for step in (-3, -2, -1, 1, 2, 3):
            other = found.copy()
            other[group] += step
            if not 0 <= other[group] < len(CLOCKS_MHZ):
                continue
            clocks = ties.clocks(other)
            length_s = problem.iteration_s(clocks)
            assert not problem.meets_deadline(length_s) or problem.energy_j(problem.effective_j(clocks), length_s) >= best_j - 1e-6


@pytest.mark.parametrize("large", [1, 10**9])
def test_searches_are_no_worse(monkeypatch, large):
    problem = job("overlap", 2)
    start = priced_start(Space(problem, 8), bound(problem))
    monkeypatch.setattr(segments, "LARGE", large)
    found = few_switches(problem, bound(problem), 8, Effort(1, 30.0))
    assert saved_share(problem, found.clocks) >= saved_share(problem, start)
