"""Improving plans that are in time."""

import numpy as np
import pytest

from megatron_energy.planning.polish import Polish, best_per_unit
from megatron_energy.planning.sequences import Candidate, Space, count_switches
from tests.planning.pipelines import small_problem


@pytest.mark.parametrize("switches", [2, 8])
def test_in_time_no_worse_and_no_more_switches(switches):
    problem = small_problem(3, 2, 6, slowdown=0.1)
    space = Space(problem, switches)
    polish = Polish(space, 300.0)
    found = polish.polished(space.baseline())
    assert problem.iteration_s(found) <= problem.deadline_s
    assert polish.energy_j(found) < polish.energy_j(space.baseline())
    assert max(count_switches(found[member]) for member in space.members) <= switches
    assert polish.energy_j(polish.polished(found)) == pytest.approx(polish.energy_j(found))


def test_best_of_every_unit():
    candidates = [Candidate(unit, np.zeros(1, dtype=np.int64)) for unit in (0, 1, 0, 2)]
    assert best_per_unit(candidates, np.array([-1.0, -3.0, -2.0, 0.5])) == [1, 2]
    assert best_per_unit(candidates, np.array([-1.0, -3.0, -2.0, 0.5]), below=-2.5) == [1]
