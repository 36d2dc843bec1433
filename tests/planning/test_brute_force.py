"""Small problems against enumeration of every plan, and what must hold however a problem changes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.planning.bound import bound
from megatron_energy.planning.job_plan import plan_job
from megatron_energy.planning.policies import solve
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.tables import Tables, build_tables
from tests.planning.jobs import job_of, purpose_of
from tests.planning.problems import profile_of
from tests.tools.loading import load_tool

optimum = load_tool("evaluate_optimum")
SHAPES, small, energy_of, optimum_j = optimum.SHAPES, optimum.small_problem, optimum.energy_of, optimum.optimum_j
SETTINGS = [{}, {"slowdown": 0.05}, {"straggler": 1.2}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tidy", [True, False], ids=["tidy", "untidy"])
def test_no_plan_beats_the_bound_and_no_policy_beats_the_optimum(shape, tidy):
    for seed, settings_ in enumerate(SETTINGS):
        problem = small(shape, seed, tidy=tidy, **settings_)
        least_j = optimum_j(problem, shape)
        assert bound(problem).energy_j <= least_j * (1 + 1e-9)
        found_j = {policy: energy_of(problem, solve(problem, policy).clocks) for policy in ("operations", "stages", "uniform")}
        assert min(found_j.values()) >= least_j * (1 - 1e-12)
        assert found_j["stages"] <= found_j["uniform"] * (1 + 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_operations_are_nearly_optimal(shape):
    """Few operations and few clocks leave the coarsest roundings; still the mean loss is small. Points of the baseline's energy."""
    lost = [optimum.lost_points(small(shape, 100 + seed), "operations", shape) for seed in range(8)]
    assert np.mean(lost) <= 0.15
    assert max(lost) <= 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("max_switches", [0, 2, 3])
def test_segments_are_nearly_optimal_for_their_number_of_switches(shape, max_switches):
    problem = small(shape, 200 + max_switches)
    clocks = solve(problem, "segments", max_switches=max_switches).clocks
    assert optimum.most_switches(problem, clocks[np.newaxis])[0] <= max_switches
    assert -1e-9 <= optimum.lost_points(problem, "segments", shape, max_switches) <= 0.3


few = settings(max_examples=4)
seeds = st.integers(0, 10_000)
shapes = st.sampled_from(["plain", "interleaved", "three stages"])


@few
@given(shapes, seeds, st.integers(0, 4), st.integers(1, 4))
def test_more_switches_never_cost(shape, seed, fewer, more):
    problem = small(shape, seed)
    plan = solve(problem, "segments", max_switches=fewer)
    better = solve(problem, "segments", max_switches=fewer + more, starts=[plan.clocks])
    assert energy_of(problem, better.clocks) <= energy_of(problem, plan.clocks) * (1 + 1e-9)


@few
@given(shapes, seeds, st.floats(0, 0.3), st.floats(0, 0.3))
def test_more_slowdown_never_costs(shape, seed, slowdown, more):
    tight, loose = small(shape, seed, slowdown=slowdown), small(shape, seed, slowdown=slowdown + more)
    assert bound(loose).energy_j <= bound(tight).energy_j * (1 + 1e-9)
    plan = solve(tight, "segments", max_switches=4)
    looser = solve(loose, "segments", max_switches=4, starts=[plan.clocks])
    assert energy_of(loose, looser.clocks) <= energy_of(tight, plan.clocks) * (1 + 1e-9)


@few
@given(shapes, seeds, st.integers(0, 3))
def test_an_added_clock_never_costs(shape, seed, place):
    """At the same deadline in seconds: the baseline's clock stays, even where the new clock is higher."""
    stages, _, chunks, clocks = SHAPES[shape]
    profile = optimum.random_profile(np.random.default_rng(seed), stages, clocks + 1, tidy=False)
    graph = small(shape, 0).graph
    full = build_tables(graph, profile, chunks)
    kept = [column for column in range(clocks + 1) if column != place % (clocks + 1)]
    fewer = Problem(graph, Tables(full.clock_mhz[kept], full.time_s[:, kept], full.energy_j[:, kept]), optimum.BLOCKING_W)
    more = replace(fewer, tables=full, baseline_column=kept[0])
    assert more.deadline_s == fewer.deadline_s
    assert bound(more).energy_j <= bound(fewer).energy_j * (1 + 1e-9)
    plan = solve(fewer, "segments", max_switches=4).clocks
    better = solve(more, "segments", max_switches=4, starts=[np.array(kept)[plan]])
    assert energy_of(more, better.clocks) <= energy_of(fewer, plan) * (1 + 1e-9)


@few
@given(shapes, seeds, st.floats(0.01, 0.4), st.floats(0, 0.4))
def test_a_later_straggler_never_costs(shape, seed, straggler, later):
    """Beyond the waiting that it forces upon all GPUs."""
    early, late = small(shape, seed, straggler=1 + straggler), small(shape, seed, straggler=1 + straggler + later)
    slack_j = 1e-9 * early.baseline_energy_j

    def own_j(problem, energy_j):
        return energy_j - problem.horizon_power_w * problem.straggler_s

    assert own_j(late, bound(late).energy_j) <= own_j(early, bound(early).energy_j) + slack_j
    plan = solve(early, "segments", max_switches=4).clocks
    later_plan = solve(late, "segments", max_switches=4, starts=[plan]).clocks
    assert own_j(late, energy_of(late, later_plan)) <= own_j(early, energy_of(early, plan)) + slack_j


@few
@given(shapes, seeds, st.floats(0, 0.2), st.floats(0.01, 0.2))
def test_the_frontier_of_the_bound_is_convex(shape, seed, first, step):
    energies_j = [bound(small(shape, seed, tidy=False, slowdown=first + i * step)).energy_j for i in range(3)]
    assert energies_j[1] <= (energies_j[0] + energies_j[2]) / 2 * (1 + 1e-9)


@settings(max_examples=3)
@given(st.permutations(range(3)), st.sampled_from([{0: 1.1}, {0: 1.1, 1: 1.1}, {0: 1.1, 1: 1.2}]))
def test_permuting_replicas_changes_nothing(order, slow):
    """Which replica is slow does not matter: every replica gets the clocks that it would get under another number."""
    profile = profile_of([1.0, 1.1])
    schedule, layout, one = job_of(profile, 2, slower=slow, data=3, pipeline=2)
    _, _, other = job_of(profile, 2, slower={order[replica]: factor for replica, factor in slow.items()}, data=3, pipeline=2)
    assert bound(other.problem).energy_j == bound(one.problem).energy_j
    purpose = purpose_of(schedule, layout, max_switches=4)
    plan, other_plan = plan_job(one, purpose), plan_job(other, purpose)
    assert other_plan.expected == plan.expected
    for stage, replica in itertools.product(range(2), range(3)):
        here, there = plan.unit(stage, 3 * stage + replica), other_plan.unit(stage, 3 * stage + order[replica])
        assert (here.segments, here.requests) == (there.segments, there.requests)
