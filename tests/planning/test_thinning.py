"""Plans with few switches made of plans with more."""

import numpy as np
import pytest

from megatron_energy.planning.bound import bound
from megatron_energy.planning.segments import Effort, few_switches
from megatron_energy.planning.sequences import Space, clocked_vertices, count_switches
from megatron_energy.planning.thinning import _without_the_least, thinned
from tests.planning.pipelines import chain_problem
from tests.planning.problems import problem_of, profile_of

CLOCKS_MHZ = tuple(range(1400, 700, -50))
QUICK = Effort(rounds=6, time_s=60.0, nodes=1)


def job(p2p="overlap-wait", chunks=2):
    return problem_of(profile_of([1.0, 1.2, 0.9], CLOCKS_MHZ), 6, chunks=chunks, p2p=p2p)


def energy_j(problem, clocks):
    return problem.energy_j(problem.effective_j(clocks), problem.iteration_s(clocks))


def most_switches(problem, clocks):
    return max(count_switches(clocks[member]) for member in clocked_vertices(problem))


@pytest.mark.parametrize("fewer", [2, 3, 5])
def test_it_keeps_the_deadline_and_the_number_of_switches(fewer):
    problem = job()
    found = bound(problem)
    more = few_switches(problem, found, 8, QUICK).clocks
    plan = thinned(problem, found, more, 8, fewer, 0.0, np.inf)
    assert problem.meets_deadline(problem.iteration_s(plan))
    assert most_switches(problem, plan) <= fewer < most_switches(problem, more)
    assert energy_j(problem, more) - 1e-9 <= energy_j(problem, plan) <= problem.baseline_energy_j


def test_a_search_with_few_switches_is_no_worse_than_a_plan_thinned_out():
    problem = job()
    found = bound(problem)
    more = few_switches(problem, found, 8, QUICK).clocks
    plan = thinned(problem, found, more, 8, 4, 0.0, np.inf)
    assert energy_j(problem, few_switches(problem, found, 4, QUICK).clocks) <= energy_j(problem, plan) + 1e-9


def test_the_switches_that_matter_least_go_first():
    """Five operations of 1 s, or 2 s at the lower clock, within 7 s. The second saves 2 J there and the fourth 5 J; the third, which lies
    between them, would save 4 J, but there is no time for it.
    """
    slow_j = [9.5, 8.0, 6.0, 5.0, 9.5]
    problem = chain_problem([[1.0, 2.0]] * 5, [[10.0, energy] for energy in slow_j], slowdown=0.4)
    state = np.array([0, 1, 0, 1, 0])
    assert _without_the_least(Space(problem, 2), state).tolist() == [0, 0, 0, 1, 0]
