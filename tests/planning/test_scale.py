"""Long iterations from shorter ones: as exact as the plain linear program, and proven so."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning import scale
from megatron_energy.planning.bound import BoundProgram, bound, proven_j
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.scale import lengths, solved_program
from megatron_energy.planning.stretch import period_of, stretch
from megatron_energy.profiles.tables import build_tables
from tests.planning.pipelines import chain_problem
from tests.planning.problems import problem_of, profile_of, random_profile

FORWARD_S = [1.0, 1.2, 0.9, 1.1]


def resized(schedule, profile=None, **settings):
    profile = profile or profile_of(FORWARD_S[: schedule.stages])

    def problem(microbatches):
        graph = build_graph(replace(schedule, microbatches=microbatches))
        return Problem(graph, build_tables(graph, profile, schedule.chunks), profile.blocking_power_w, **settings)

    return problem


def solved(schedule, profile=None, **settings):
    program = solved_program(resized(schedule, profile, **settings), schedule)
    return program, program.at(program.problem.deadline_s, program.problem.earliest_horizon_s)


SCHEDULES = [
    Schedule(2, 32),
    Schedule(3, 50, p2p="batched"),
    Schedule(4, 47),
    Schedule(2, 32, 2, p2p="ideal"),
    Schedule(2, 24, 3, p2p="overlap"),
    Schedule(3, 30, 2, p2p="overlap-wait"),
    Schedule(4, 40, 2, p2p="batched"),
    Schedule(2, 38, 2, group_size=3, p2p="ideal"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("settings", [{}, {"slowdown": 0.04}, {"straggler": 1.2}], ids=str)
def test_the_bound_is_that_of_the_plain_program(schedule, settings):
    assert len(list(lengths(schedule))) > 1
    program, found = solved(schedule, **settings)
    plain = bound(program.problem)
    assert found.energy_j == pytest.approx(plain.energy_j, rel=1e-9)
    assert found.iteration_s == pytest.approx(plain.iteration_s, rel=1e-9)
    assert found.gap_j <= 1e-9 * abs(found.energy_j)


@pytest.mark.parametrize("large", [1, 10**6])
def test_the_bound_of_any_size(large, monkeypatch):
    schedule = Schedule(3, 36, 2, p2p="overlap")
    monkeypatch.setattr(scale, "LARGE", large)
    problem = resized(schedule, slowdown=0.02)
    assert scale.scaled_bound(problem, schedule).energy_j == pytest.approx(bound(problem(36)).energy_j, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_untidy_profiles_too(seed):
    profile = random_profile(np.random.default_rng(seed), 3, 5, tidy=False)
    program, found = solved(Schedule(3, 30), profile)
    assert found.energy_j == pytest.approx(bound(program.problem).energy_j, rel=1e-9)


@pytest.mark.parametrize(("schedule", "share"), [(Schedule(2, 128), 0.02), (Schedule(3, 96, 2, p2p="overlap"), 0.2)], ids=str)
def test_a_steady_state_is_drawn_out_and_not_solved_again(schedule, share):
    program, _ = solved(schedule)  # its second solution, from where it stood, took nothing
    assert program.iterations == 0
    problem = resized(schedule)
    half = BoundProgram(problem(schedule.microbatches // 2))
    half.at(half.problem.deadline_s)
    whole, cold = BoundProgram(problem(schedule.microbatches)), BoundProgram(problem(schedule.microbatches))
    whole.start_like(half, stretch(half.problem, whole.problem, period_of(schedule)))
    for one in (whole, cold):
        one.at(one.problem.deadline_s)
    assert whole.iterations < share * cold.iterations


@pytest.mark.parametrize("schedule", [*SCHEDULES, Schedule(8, 128), Schedule(16, 64, 4), Schedule(8, 8, 2), Schedule(1, 1)], ids=str)
def test_lengths_repeat_whole_groups(schedule):
    counts = list(lengths(schedule))
    assert counts[0] == schedule.microbatches
    assert counts == sorted(set(counts), reverse=True)
    for longer, shorter in pairwise(counts):
        assert (longer - shorter) % period_of(schedule) == 0
        assert shorter >= longer / 2
        assert shorter >= 4 * max(schedule.stages, period_of(schedule))


def test_lengths_by_hand():
    assert list(lengths(Schedule(8, 128))) == [128, 64, 32]
    assert list(lengths(Schedule(16, 64, 4))) == [64]  # four groups of 16: half of them would hardly be steady
    assert list(lengths(Schedule(2, 26, 2, group_size=3))) == [26, 14]  # eight groups of 3 and two microbatches


def places(problem):
    return [(v.unit, v.kind, v.chunk, v.microbatch) for v in problem.graph.vertices]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_same_length_is_itself(schedule):
    problem = resized(schedule)(schedule.microbatches)
    like = stretch(problem, problem, period_of(schedule))
    assert like.vertex.tolist() == list(range(len(problem.graph.vertices)))
    assert like.row.tolist() == list(range(len(problem.graph.edges) + len(problem.paths.sinks)))


def test_plain_pipeline_by_hand():
    # 6 microbatches to 9: 0-2 are the first ones, 6-8 the last ones, and 3, 4 and 5 are like 2.
    problem = resized(Schedule(2, 9))
    short, long = problem(6), problem(9)
    like = stretch(short, long, 1)
    at = {place: vertex for vertex, place in enumerate(places(short))}
    counterpart = [0, 1, 2, 2, 2, 2, 3, 4, 5]
    for vertex, (unit, kind, chunk, microbatch) in enumerate(places(long)):
        assert like.vertex[vertex] == at[unit, kind, chunk, counterpart[microbatch]]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_stands_for_a_vertex_is_its_like(schedule):
    long = resized(schedule)(schedule.microbatches)
    short = resized(schedule)(list(lengths(schedule))[1])
    like = stretch(short, long, period_of(schedule))
    for vertex, other in enumerate(like.vertex.tolist()):
        assert other >= 0
        a, b = long.graph.vertices[vertex], short.graph.vertices[other]
        assert (a.unit, a.kind, a.chunk, a.role) == (b.unit, b.kind, b.chunk, b.role)
    edges = np.count_nonzero(like.row < 0)
    assert edges <= 0.05 * len(like.row)
    rows = np.flatnonzero(like.row[: len(long.graph.edges)] >= 0)
    assert like.vertex[long.graph.edges[rows, 0]].tolist() == short.graph.edges[like.row[rows], 0].tolist()


def test_clocks_are_drawn_out_too():
    problem = resized(Schedule(2, 9))
    short, long = problem(6), problem(9)
    like = stretch(short, long, 1)
    of_microbatch = np.array([v.microbatch % 4 for v in short.graph.vertices])
    expected = [[0, 1, 2, 2, 2, 2, 3, 4, 5][v.microbatch] % 4 for v in long.graph.vertices]
    assert like.clocks(of_microbatch, long.baseline_clocks).tolist() == expected


def test_what_cannot_be_compared():
    two, three = resized(Schedule(2, 8)), resized(Schedule(3, 8))
    with pytest.raises(ValueError, match="8 microbatches cannot be stretched to 6"):
        stretch(two(8), two(6), 1)
    with pytest.raises(ValueError, match="6 microbatches cannot be stretched to 8 in steps of 4"):
        stretch(two(6), two(8), 4)
    with pytest.raises(ValueError, match="different units"):
        stretch(two(6), three(8), 1)


@given(seed=st.integers(0, 1000))
@limits(max_examples=20)
def test_any_prices_prove_something_true(seed):
    rng = np.random.default_rng(seed)
    problem = problem_of(random_profile(rng, 2, 4, tidy=False), 3, slowdown=0.1, straggler=rng.choice([1.0, 1.3]))
    found = bound(problem)
    deadline = problem.deadline_s, problem.earliest_horizon_s
    assert proven_j(problem, found.row_price_w, *deadline) == pytest.approx(found.energy_j, rel=1e-9)
    for factor in (0.0, 0.5, 2.0):
        prices = found.row_price_w * factor + rng.uniform(0, 50, len(found.row_price_w)) * rng.choice([0.0, 1.0])
        assert proven_j(problem, prices, *deadline) <= found.energy_j + 1e-9 * abs(found.energy_j)


def test_proof_by_hand():
    # One operation: 1 s for 100 J or 2 s for 60 J, until 1.5 s.
    problem = chain_problem([[1, 2]], [[100, 60]])
    assert proven_j(problem, np.array([40.0]), 1.5) == pytest.approx(80)  # at 40 W both cost 140 J; the deadline is worth 60 J
    assert proven_j(problem, np.array([10.0]), 1.5) == pytest.approx(65)  # 80 J at 2 s, less 15 J
    assert proven_j(problem, np.array([90.0]), 1.5) == pytest.approx(55)  # 190 J at 1 s, less 135 J
