"""All clocks of a plan chosen together: against enumeration with the switches where they are."""

import itertools

import numpy as np
import pytest

from megatron_energy.planning.clock_program import best_clocks
from megatron_energy.planning.priced_start import segments_of
from megatron_energy.planning.sequences import Space, count_switches
from tests.planning.pipelines import small_problem
from tests.planning.problems import problem_of, random_profile


def energy_j(space, state):
    return space.problem.energy_j(space.cost(state), space.problem.iteration_s(state))


def cheapest_by_enumeration(space, state):
    """Least energy over all clocks of the state's segments that are in time."""
    ties = segments_of(space.problem, state, space.members)
    states = [ties.clocks(np.array(columns)) for columns in itertools.product(range(space.clocks), repeat=ties.count)]
    return min(energy_j(space, s) for s in states if space.problem.meets_deadline(space.problem.iteration_s(s)))


def cut_once(space):
    """One switch in the middle of every unit's operations and one at the end, at the two highest clocks."""
    state = space.baseline()
    for member in space.members:
        state[member[len(member) // 2 :]] = 1
    return state


@pytest.mark.parametrize("settings", [{"slowdown": 0.1}, {"slowdown": 0.3}, {"straggler": 1.2}])
@pytest.mark.parametrize("lead_s", [0.0, 0.2])
def test_the_best_clocks_of_a_small_plan(settings, lead_s):
    problem = small_problem(2, 1, 3, clocks=(1400, 1250, 1100), stage_s=(1.0, 0.7), **settings)  # 3 columns: all are near the mean
    space = Space(problem, 2, lead_s)
    start = cut_once(space)
    assert problem.meets_deadline(problem.iteration_s(start))
    space.price_raises(start)
    found, in_time = best_clocks(space, start, 1000, 60.0)
    assert in_time
    assert problem.meets_deadline(problem.iteration_s(found))
    assert energy_j(space, found) == pytest.approx(cheapest_by_enumeration(space, start), rel=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_never_worse_and_no_further_switches(seed):
    rng = np.random.default_rng(seed)
    problem = problem_of(random_profile(rng, 3, 8), 6, chunks=2, p2p="overlap", slowdown=0.2)
    space = Space(problem, 2)
    start = cut_once(space)
    if not problem.meets_deadline(problem.iteration_s(start)):
        start = space.baseline()
    found, _ = best_clocks(space, start, 20, 60.0)
    assert problem.meets_deadline(problem.iteration_s(found))
    assert energy_j(space, found) <= energy_j(space, start) * (1 + 1e-9)
    assert max(count_switches(found[member]) for member in space.members) <= 2


def test_same_plan_again():
    problem = small_problem(3, 2, 6, slowdown=0.05)
    space = Space(problem, 2)
    first, second = (best_clocks(space, space.baseline(), 20, 60.0)[0] for _ in range(2))
    assert first.tolist() == second.tolist()
