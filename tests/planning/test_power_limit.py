"""One power cap for all GPUs."""

import numpy as np
import pytest

from megatron_energy.planning.power_limit import best_cap, clocks_under, power_limit
from tests.planning.problems import problem_of, profile_of, with_tables

# Seconds and watts at three clocks. Forwards draw less than backwards.
FORWARD_S, FORWARD_W = np.array([1.0, 1.2, 1.5]), np.array([300.0, 220.0, 180.0])
BACKWARD_S, BACKWARD_W = np.array([2.0, 2.4, 3.0]), np.array([400.0, 280.0, 240.0])


def one_gpu(**settings):
    """A GPU that runs F0 B0 F1 B1, 6 s and 2200 J as found; it never waits."""
    problem = problem_of(profile_of([1.0]), 2)
    forward = np.array([v.kind == "forward" for v in problem.graph.vertices])[:, np.newaxis]
    time_s = np.where(forward, FORWARD_S, BACKWARD_S)
    return with_tables(problem, time_s, time_s * np.where(forward, FORWARD_W, BACKWARD_W), blocking_power_w=60.0, **settings)


@pytest.mark.parametrize(
    ("cap_w", "forward", "backward"),
    [(400, 0, 0), (399, 0, 1), (300, 0, 1), (299, 1, 1), (280, 1, 1), (279, 1, 2), (240, 1, 2), (219, 2, 2), (100, 2, 2)],
)
def test_every_operation_runs_at_the_highest_clock_within_the_cap(cap_w, forward, backward):
    assert clocks_under(one_gpu(), cap_w).tolist() == [forward, backward, forward, backward]


def test_without_slowdown_nothing_is_capped():
    cap = best_cap(one_gpu())
    assert (cap.cap_w, cap.clocks.tolist()) == (400.0, [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("slowdown", "cap_w", "iteration_s", "energy_j"),
    [
        (0.10, 400.0, 6.0, 2200.0),
        (0.15, 300.0, 6.8, 2 * (1.0 * 300 + 2.4 * 280)),  # backwards at 280 W
        (0.20, 280.0, 7.2, 2 * (1.2 * 220 + 2.4 * 280)),
        (0.45, 280.0, 7.2, 2 * (1.2 * 220 + 2.4 * 280)),  # 240 W would be in time, and dearer: 1968 J
    ],
)
def test_the_cheapest_cap_in_time_by_hand(slowdown, cap_w, iteration_s, energy_j):
    problem = one_gpu(slowdown=slowdown)
    cap = best_cap(problem)
    found = problem.evaluate(cap.clocks)
    assert cap.cap_w == pytest.approx(cap_w)
    assert (found.iteration_s, found.energy_j) == (pytest.approx(iteration_s), pytest.approx(energy_j))
    assert power_limit(problem).tolist() == cap.clocks.tolist()


def test_a_step_without_a_choice_limits_no_cap():
    """A fixed step that draws 500 W at every clock: a cap cannot change it, and it does not stand in the way of one."""
    problem = one_gpu()
    time_s, energy_j = problem.tables.time_s.copy(), problem.tables.energy_j.copy()
    time_s[3], energy_j[3] = 2.0, 1000.0
    problem = with_tables(problem, time_s, energy_j, slowdown=0.2)
    assert best_cap(problem).cap_w == pytest.approx(280.0)


def test_a_baseline_below_the_highest_clock_stands_where_no_cap_keeps_its_time():
    """The highest clock is the slower one here, and the GPUs were found at the other."""
    problem = with_tables(one_gpu(), [2.0, 1.0], [200.0, 300.0], baseline_column=1)
    cap = best_cap(problem)
    assert (cap.cap_w, cap.clocks.tolist()) == (300.0, [1, 1, 1, 1])
