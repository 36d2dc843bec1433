import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.replay import energy_j, replay
from tests.planning.pipelines import chain_problem, small_problem


def test_energies_by_hand():
    # two operations after each other; the second clock takes twice as long for half the energy
    problem = chain_problem([[1, 2], [1, 2]], [[100, 50], [100, 50]], blocking_power_w=10, slowdown=0.5, gpus_per_unit=4)
    assert problem.baseline_s == 2.0
    assert problem.deadline_s == 3.0
    assert problem.baseline_energy_j == 200.0
    found = problem.evaluate(np.array([0, 1]))
    assert found.iteration_s == 3.0
    assert found.energy_j == 4 * 150.0
    assert found.saved_percent == pytest.approx(25.0)
    assert found.slowdown_percent == pytest.approx(50.0)


def test_with_a_straggler_everybody_waits_until_its_end():
    problem = chain_problem([[1, 2]], [[100, 50]], blocking_power_w=10, straggler=3.0)
    assert problem.deadline_s == 3.0
    assert problem.baseline_energy_j == 100 + 2 * 10  # computes 1 s, waits 2 s
    found = problem.evaluate(np.array([1]))
    assert found.energy_j == 50 + 1 * 10
    assert found.slowdown_percent == 0.0  # the straggler decides when the iteration ends


def test_without_a_straggler_waiting_ends_with_the_iteration():
    problem = chain_problem([[2, 1]], [[100, 90]], blocking_power_w=10, baseline_column=0)  # the second clock is faster
    found = problem.evaluate(np.array([1]))
    assert found.energy_j == 90.0
    assert found.slowdown_percent == pytest.approx(-50.0)


def test_energy_is_that_of_replay():
    problem = small_problem(3, 1, 4)
    clocks = np.random.default_rng(0).integers(0, 4, len(problem.graph.vertices))
    rows = np.arange(len(clocks))
    durations = problem.tables.time_s[rows, clocks]
    assert problem.iteration_s(clocks) == replay(problem.graph, durations).makespan_s
    assert problem.evaluate(clocks).energy_j == pytest.approx(
        energy_j(problem.graph, durations, problem.tables.energy_j[rows, clocks], problem.blocking_power_w)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"blocking_power_w": -1.0},
        {"blocking_power_w": float("nan")},
        {"slowdown": -0.1},
        {"straggler": 0.9},
        {"straggler": float("inf")},
        {"gpus_per_unit": 0},
    ],
)
def test_senseless_settings_are_refused(settings):
    with pytest.raises(UserError):
        small_problem(**settings)
