"""What real clocks cost at least: by hand, and beside the best of all plans."""

import itertools
from typing import Any

import numpy as np
import pytest

from megatron_energy.pipeline.replay import makespans
from megatron_energy.planning.bound import bound
from megatron_energy.planning.problem import Problem
from tests.planning.pipelines import chain_problem, small_problem
from tests.planning.problems import problem_of, random_profile
from tests.tools.loading import load_tool

real_clocks = load_tool("real_clocks")


def cheapest(problem: Problem) -> tuple[float, Any]:
    """(least energy of all plans in time, its clock columns)."""
    n, columns = problem.tables.time_s.shape
    states = np.array(list(itertools.product(range(columns), repeat=n))).T
    rows = np.arange(n)[:, np.newaxis]
    ends_s = makespans(problem.graph, problem.tables.time_s[rows, states])
    energy_j = problem.cost_j[rows, states].sum(axis=0) + problem.horizon_power_w * np.maximum(ends_s, problem.earliest_horizon_s)
    energy_j[ends_s > problem.deadline_s * (1 + 1e-11)] = np.inf
    return float(energy_j.min()), states[:, energy_j.argmin()]


def test_by_hand() -> None:
    # half a second to spare for two operations that are one to the tool: (1, 1.5), (1.5, 1) or (1, 1); 40 J less is the most
    problem = chain_problem([[1, 1.5], [1, 1.5]], [[100, 60], [100, 70]], slowdown=0.25)
    assert real_clocks.least_energy_j(problem, np.array([1, 0])) == pytest.approx(160)
    # a quarter of a second: only the bound can use it
    short = chain_problem([[1, 1.5], [1, 1.5]], [[100, 60], [100, 70]], slowdown=0.125)
    assert bound(short).energy_j == pytest.approx(180)
    assert real_clocks.least_energy_j(short, np.array([0, 0])) == pytest.approx(200)


def test_pairs_that_are_one() -> None:
    problem = chain_problem([[1, 1.5], [1, 1.5], [1, 1.5]], [[100, 60], [100, 70], [100, 80]], slowdown=0.2)
    merged = real_clocks.merge(problem)
    assert merged.members.tolist() == [0, 0, 1]
    assert merged.problem.tables.time_s[0].tolist() == [2, 2.5]  # 0.6 s to spare: not 3
    assert merged.problem.cost_j[0].tolist() == [200, 160]
    assert real_clocks.clocks_of(merged, problem, np.array([0, 1, 0])).tolist() == [1, 0]  # the same time, and cheaper


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"slowdown": 0.05}, {"straggler": 1.1}], ids=str)
@pytest.mark.parametrize(("stages", "chunks", "microbatches", "p2p"), [(2, 1, 3, "ideal"), (2, 2, 2, "overlap"), (2, 2, 2, "overlap-wait")])
def test_between_the_bound_and_the_best_plan(
    seed: int, settings: dict[str, float], stages: int, chunks: int, microbatches: int, p2p: Any
) -> None:
    profile = random_profile(np.random.default_rng(seed), stages, 2)
    problem = problem_of(profile, microbatches, chunks=chunks, p2p=p2p, **settings)
    best_j, clocks = cheapest(problem)
    for block in (4, 100):
        least_j = real_clocks.least_energy_j(problem, clocks, block)
        assert least_j <= best_j * (1 + 1e-9)
        assert least_j >= bound(problem).energy_j * (1 - 1e-9)
    if "slowdown" not in settings:  # nothing is gained by an earlier end: one block, searched to its end, is the whole problem
        assert least_j == pytest.approx(best_j, rel=1e-6)


def test_any_plan_will_do_to_prove_it() -> None:
    problem = small_problem(2, 1, 2, clocks=(1400, 1100, 800), straggler=1.1)
    best_j, clocks = cheapest(problem)
    for plan in (clocks, problem.baseline_clocks):
        assert real_clocks.least_energy_j(problem, plan) == pytest.approx(best_j, rel=1e-6)
