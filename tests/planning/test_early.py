"""What raises cost for coming early, by hand."""

import numpy as np
import pytest

from megatron_energy.pipeline.replay import replay
from megatron_energy.planning.assemble import expectation
from megatron_energy.planning.early import early_raises_j
from megatron_energy.planning.sequences import Space, clocked_vertices
from tests.planning.pipelines import chain_problem

# Each operation takes 1 s and 100 J at the higher clock, 2 s and 60 J at the lower one.
TIME_S, ENERGY_J = [[1, 2], [1, 2]], [[100, 60], [100, 60]]


@pytest.mark.parametrize(
    ("clocks", "lead_s", "early_j"),
    [
        ([1, 0], 0.5, 10.0),  # a quarter of the first operation runs at the higher clock
        ([0, 1], 0.5, 10.0),  # a quarter of the last operation, of the iteration before
        ([1, 0], 1.0, 20.0),
        ([1, 0], 0.0, 0.0),
        ([1, 1], 0.5, 0.0),
    ],
)
def test_part_of_an_operation_runs_at_the_higher_clock(clocks, lead_s, early_j):
    problem, state = chain_problem(TIME_S, ENERGY_J, slowdown=1.0), np.array(clocks)
    done = replay(problem.graph, problem.durations(state))
    assert early_raises_j(problem, clocked_vertices(problem), state, done, lead_s) == pytest.approx([early_j])
    space = Space(problem, 2, lead_s)
    space.price_raises(state)
    assert space.cost(state) == pytest.approx(problem.effective_j(state) + early_j)


def test_a_plan_promises_no_more_than_it_can_keep():
    problem = chain_problem(TIME_S, ENERGY_J, slowdown=1.0, gpus_per_unit=4)
    found = expectation(problem, np.array([1, 0]), lead_s=0.5)
    assert found.energy_j == pytest.approx(4 * 170)
    assert found.saved_percent == pytest.approx(15.0)  # of 200 J
    assert expectation(problem, np.array([1, 0])).energy_j == pytest.approx(4 * 160)
