"""Clocks of a window by branch and bound: against trying everything, and the rest left as it is."""

import itertools

import numpy as np
import pytest

from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.beam import Beam
from megatron_energy.planning.bound import bound
from megatron_energy.planning.operations import per_operation
from megatron_energy.planning.window_program import best_in_window
from tests.planning.pipelines import chain_problem, small_problem
from tests.planning.problems import problem_of, random_profile

NODES = {"nodes": 1000, "time_limit_s": 60.0}


def every_column(problem, window):
    return np.tile(np.arange(problem.tables.time_s.shape[1]), (len(window), 1))


def cheapest(problem, clocks, window):
    """Least effective energy of any clocks in time that differ in the window alone."""
    choices = np.array(list(itertools.product(range(problem.tables.time_s.shape[1]), repeat=len(window)))).T
    states = np.repeat(clocks[:, np.newaxis], choices.shape[1], axis=1)
    states[window] = choices
    rows = np.arange(len(clocks))[:, np.newaxis]
    in_time = makespans(problem.graph, problem.tables.time_s[rows, states]) <= problem.deadline_s * (1 + 1e-12)
    return problem.cost_j[rows, states].sum(axis=0)[in_time].min()


def test_by_hand():
    # half a second to spare: exactly one operation can take 1.5 instead of 1 s
    problem = chain_problem([[1, 1.5], [1, 1.5]], [[100, 60], [100, 70]], slowdown=0.25)
    both, second = np.array([0, 1]), np.array([1])
    assert best_in_window(problem, np.array([0, 1]), both, every_column(problem, both), **NODES).tolist() == [1, 0]
    assert best_in_window(problem, np.array([0, 0]), second, every_column(problem, second), **NODES).tolist() == [0, 1]
    assert best_in_window(problem, np.array([1, 0]), both, every_column(problem, both), **NODES) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("chunks", "p2p"), [(1, "ideal"), (2, "overlap")])
def test_the_best_of_all_in_every_window(seed, chunks, p2p):
    rng = np.random.default_rng(seed)
    problem = problem_of(random_profile(rng, 2, 3), 4, chunks=chunks, p2p=p2p, slowdown=0.05)
    least = bound(problem)
    order, clocks = Beam(problem, least).order, problem.baseline_clocks
    for first in range(0, len(order) - 3, 4):
        window = order[first : first + 8]
        better = best_in_window(problem, clocks, window, every_column(problem, window), **NODES)
        assert problem.effective_j(clocks if better is None else better) == pytest.approx(cheapest(problem, clocks, window), rel=1e-9)
        if better is not None:
            assert problem.meets_deadline(problem.iteration_s(better))
            assert np.array_equal(np.delete(better, window), np.delete(clocks, window))
            clocks = better


def test_only_clocks_that_are_offered():
    problem = small_problem(2, 1, 3, slowdown=0.2)
    clocks = problem.baseline_clocks
    window = np.arange(len(clocks))
    better = best_in_window(problem, clocks, window, np.ones((len(clocks), 1), dtype=np.int64), **NODES)
    assert set(better.tolist()) <= {0, 1}
    assert problem.effective_j(better) >= problem.effective_j(per_operation(problem, bound(problem), work=0)) - 1e-9
