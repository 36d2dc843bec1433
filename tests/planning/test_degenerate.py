"""Degenerate input: for each kind its right answer, for the bound and for every policy, or one clear line."""

import dataclasses
import itertools

import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.bound import bound
from megatron_energy.planning.candidates import evaluate_all, in_time
from megatron_energy.planning.envpipe import outer_envelope
from megatron_energy.planning.policies import PLAIN_POLICIES, POLICIES, solve
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.curves import lower_hull
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import build_tables
from tests.planning.problems import problem_of, profile_of, random_profile

EVERY = (*POLICIES, *PLAIN_POLICIES)
PLANNED = ("segments", "operations", "roles", "stages", "uniform", "power-limit")  # all that may leave the baseline and keep the deadline
BLOCKING_W = 100.0


def flat(stages, time_s, energy_j, clocks_mhz=(1400, 1200, 1000)):
    """All stages alike; backwards take and cost twice as much as forwards."""
    clock_mhz = np.array(clocks_mhz[: len(time_s)], dtype=np.int64)
    times, energies = np.array(time_s, dtype=np.float64), np.array(energy_j, dtype=np.float64)
    scale = {"forward": 1.0, "backward": 2.0}
    return Profile(
        {(stage, -1, name): Curve(clock_mhz, times * by, energies * by) for stage in range(stages) for name, by in scale.items()},
        BLOCKING_W,
    )


def saved(problem, policy):
    """Percent; the plan keeps the deadline and does not beat the bound."""
    solution = solve(problem, policy)
    found = problem.evaluate(solution.clocks)
    assert problem.meets_deadline(found.iteration_s), policy
    assert solution.bound.energy_j <= found.energy_j / problem.gpus_per_unit * (1 + 1e-9), policy
    assert np.isfinite(found.saved_percent), policy
    return found.saved_percent


def bound_saved(problem):
    return problem.saved_percent(bound(problem).energy_j)


def every_plan(problem):
    """Energy of the cheapest plan in time, by trying every clock for every operation."""
    n, clocks = problem.tables.time_s.shape
    states = np.array(list(itertools.product(range(clocks), repeat=n)))
    iteration_s, energy_j = evaluate_all(problem, states)
    return float(energy_j[in_time(problem, iteration_s)].min())


@pytest.mark.parametrize("policy", EVERY)
def test_one_clock(policy):
    problem = problem_of(flat(3, [1.0], [300.0]), 4)
    assert saved(problem, policy) == pytest.approx(0, abs=1e-9)
    assert bound_saved(problem) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("middle", [(), ((1.25, 290.0),)], ids=["two clocks", "three clocks"])
def test_few_clocks(middle):
    """Two stages, two microbatches: F1 and B0 of the first one have 2 s and 1 s to spare, so both can be slow: 110 J and 220 J of 4,200 J.

    A clock between the two that is hardly cheaper than the fast one changes nothing.
    """
    points = ((1.0, 300.0), *middle, (1.5, 240.0))
    problem = problem_of(flat(2, *zip(*points, strict=True)), 2)
    assert problem.baseline_energy_j == pytest.approx(4200)
    assert bound_saved(problem) == pytest.approx(100 * 330 / 4200)
    for policy in ("operations", "segments", "roles"):
        assert saved(problem, policy) == pytest.approx(100 * 330 / 4200), policy
    for policy in ("stages", "uniform", "power-limit", "maximum"):
        assert saved(problem, policy) == pytest.approx(0, abs=1e-9), policy
    assert saved(problem, "envpipe") == pytest.approx(100 * 330 / 4200)


def test_equal_times():
    """Clocks that make no difference to the time: everything runs where it is cheapest, a third cheaper than as found."""
    problem = problem_of(flat(3, [1.0, 1.0, 1.0], [300.0, 180.0, 200.0]), 4)
    operations_j = 3 * 4 * 3 * 300  # stages x microbatches x (1 s + 2 s) x 300 W
    right = 100 * 0.4 * operations_j / problem.baseline_energy_j
    assert bound_saved(problem) == pytest.approx(right)
    for policy in PLANNED:
        assert saved(problem, policy) == pytest.approx(right), policy
        assert set(solve(problem, policy).clocks.tolist()) == {1}, policy
    kept = outer_envelope(problem)
    assert solve(problem, "envpipe").clocks.tolist() == np.where(kept, 0, 1).tolist()


def test_a_memory_bound_stage():
    """The second of three stages does not slow down: it runs at its cheapest clock throughout."""
    profile = profile_of([1.0, 1.0, 1.1])
    for name, by in (("forward", 1.0), ("backward", 2.0)):
        clock_mhz = profile.curves[1, -1, name].clock_mhz
        profile.curves[1, -1, name] = Curve(clock_mhz, np.full(4, by), by * np.array([300.0, 250.0, 210.0, 190.0]))
    problem = problem_of(profile, 4)
    stage = np.array([v.unit for v in problem.graph.vertices])
    for policy in ("segments", "operations", "roles", "stages"):
        assert set(solve(problem, policy).clocks[stage == 1].tolist()) == {3}, policy
        saved(problem, policy)
    least = 100 * (4 * 3 * 110) / problem.baseline_energy_j  # 110 W less in 4 x 3 s
    assert saved(problem, "stages") == pytest.approx(least)
    assert saved(problem, "operations") > least
    assert np.allclose(bound(problem).weights[stage == 1, 3], 1)


def test_a_concave_profile():
    """The middle clock costs more than a mix of the others: the bound does not use it, a plan may (0.5 s are enough for it alone)."""
    profile = flat(2, [1.0, 1.25, 3.0], [300.0, 298.0, 100.0])
    problem = problem_of(profile, 2)
    assert lower_hull(problem.tables.time_s[0], problem.cost_j[0]).tolist() == [0, 2]
    weights = bound(problem).weights
    assert np.all(weights[:, 1] < 1e-9)
    assert weights[:, 2].max() > 0.3
    right = 100 * (1 - every_plan(problem) / problem.baseline_energy_j)
    assert saved(problem, "operations") == pytest.approx(right)
    for policy in EVERY:
        assert saved(problem, policy) <= right + 1e-9, policy


def test_a_profile_that_is_not_monotone():
    """The highest clock is throttled: the middle one is faster and cheaper, so it serves everywhere; its time is not the deadline."""
    problem = problem_of(flat(3, [1.1, 1.0, 1.5], [330.0, 250.0, 240.0]), 4)
    everywhere = problem.evaluate(np.ones(len(problem.graph.vertices), dtype=np.int64))
    assert everywhere.slowdown_percent == pytest.approx(100 * (1 / 1.1 - 1))
    assert problem.deadline_s == problem.baseline_s
    assert saved(problem, "uniform") == pytest.approx(everywhere.saved_percent)
    for policy in ("segments", "operations", "roles", "stages"):
        assert saved(problem, policy) >= everywhere.saved_percent - 1e-9, policy
    assert saved(problem, "power-limit") == pytest.approx(everywhere.saved_percent)  # 250 W, where the highest clock draws 300 W


@pytest.mark.parametrize("slowdown", [0.5, 100.0])
@pytest.mark.parametrize(
    "points",
    [((1.0, 300.0), (1.2, 270.0), (1.5, 240.0)), ((1.1, 330.0), (1.0, 250.0), (1.5, 240.0)), ((2.0, 500.0), (1.0, 250.0), (1.5, 240.0))],
    ids=["usual", "throttled", "slowest at the highest clock"],
)
def test_more_time_than_any_plan_needs(points, slowdown):
    """The plan ends where waiting begins to cost more than slowness saves, as the bound does, and not at the deadline."""
    problem = problem_of(flat(2, *zip(*points, strict=True)), 4, slowdown=slowdown)
    for policy in ("segments", "operations"):
        assert saved(problem, policy) == pytest.approx(bound_saved(problem), abs=1e-6), policy


def test_more_switches_than_operations():
    problem = problem_of(flat(2, [1.0, 1.2, 1.5], [300.0, 270.0, 240.0]), 4)
    few, many = (problem.evaluate(solve(problem, "segments", max_switches=count).clocks) for count in (8, 10**30))
    assert many.saved_percent == pytest.approx(few.saved_percent)


@pytest.mark.parametrize("seed", range(6))
def test_noise(seed):
    """Neither smooth nor monotone: nothing is promised that cannot be had, and most of what can be had is found.

    Of all 3^8 plans the best one is found for most profiles; some policy comes within 0.3 points of it for every one.
    """
    problem = problem_of(random_profile(np.random.default_rng(seed), 2, 3, tidy=False), 2, slowdown=0.02 * seed)
    right = problem.saved_percent(every_plan(problem))
    assert bound_saved(problem) >= right - 1e-9
    found = {policy: saved(problem, policy) for policy in PLANNED}
    assert max(found.values()) == pytest.approx(right, abs=0.3)
    assert max(found.values()) <= right + 1e-9
    assert found["operations"] >= 0.9 * right


def test_operations_without_energy():
    """Only waiting costs: everything is as slow as the deadline lets it be, and the last stage keeps its time."""
    problem = problem_of(flat(2, [1.0, 1.5], [0.0, 0.0]), 2)
    assert problem.baseline_energy_j == pytest.approx(6 * BLOCKING_W)  # 2 x 9 s less 12 s of operations
    for policy in ("segments", "operations", "roles"):
        assert saved(problem, policy) == pytest.approx(100 * 1.5 / 6), policy  # F1 and B0 fill 0.5 s and 1 s of it
    assert bound_saved(problem) == pytest.approx(100 * 1.5 / 6)


def test_no_energy_at_all_is_refused(tmp_path, capsys):
    from megatron_energy.cli.main import main

    path = write(tmp_path, [(0, "forward", 1400, 1.0, 0.0), (0, "backward", 1400, 2.0, 0.0)])
    assert main(["plan", "--profile", str(path), "--pipeline", "1", "--microbatches", "1", "--blocking-power", "0"]) == 2
    assert capsys.readouterr().err.endswith("the baseline uses no energy, so nothing can be saved: measure the energies\n")


def test_blocking_power_above_an_operations_power():
    """Waiting costs more than working: a slow operation saves even if its own energy grows, as long as nobody waits for it."""
    problem = dataclasses.replace(problem_of(flat(2, [1.0, 1.5], [300.0, 330.0]), 2), blocking_power_w=400.0)
    # F1: 30 J more, 0.5 s x 400 W less waiting; B0: 60 J more and 1 s less. Baseline: 12 s x 300 W + 6 s x 400 W.
    right = 100 * (170 + 340) / 6000
    assert bound_saved(problem) == pytest.approx(right)
    for policy in ("segments", "operations", "roles"):
        assert saved(problem, policy) == pytest.approx(right), policy


@pytest.fixture(scope="module")
def usual():
    """Percentages by policy, and of the bound, of a profile in seconds and joules."""
    problem = problem_of(profile_of([1.0, 1.2]), 4)
    return {"bound": bound_saved(problem), **{policy: saved(problem, policy) for policy in EVERY}}


@pytest.mark.parametrize(
    ("time_factor", "energy_factor"),
    [(1.0, 1e5), (1e-6, 1e-6), (1e-6, 1.0), (3e4, 3e4)],
    ids=["energies x 1e5", "microseconds", "microseconds at megawatts", "hours"],
)
def test_units_change_nothing(usual, time_factor, energy_factor):
    """Times and energies in other units, blocking power with them: the same percentages."""
    plain = profile_of([1.0, 1.2])
    scaled = Profile(
        {key: Curve(c.clock_mhz, c.time_s * time_factor, c.energy_j * energy_factor) for key, c in plain.curves.items()},
        80.0 * energy_factor / time_factor,
    )
    problem = problem_of(scaled, 4)
    assert bound_saved(problem) == pytest.approx(usual["bound"], abs=1e-3)
    for policy in EVERY:
        assert saved(problem, policy) == pytest.approx(usual[policy], abs=1e-3), policy


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 5), (4, 1), (1, 1)])
def test_a_pipeline_without_bubbles_to_use(stages, microbatches):
    """One stage, or one microbatch: everything is on the critical path, and nothing can be saved without time."""
    problem = problem_of(profile_of([1.0, 1.1, 0.9, 1.2][:stages]), microbatches)
    assert bound_saved(problem) == pytest.approx(0, abs=1e-7)
    for policy in EVERY:
        assert saved(problem, policy) == pytest.approx(0, abs=1e-9), policy


def test_fewer_microbatches_than_stages():
    """Three stages, two microbatches, each operation in its turn: the plan saves what the best of all plans of two clocks does."""
    profile = flat(3, [1.0, 1.5], [300.0, 240.0])
    problem = problem_of(profile, 2)
    right = problem.saved_percent(every_plan(problem))
    assert right > 0
    assert saved(problem, "operations") == pytest.approx(right)
    for policy in EVERY:
        assert saved(problem, policy) <= right + 1e-9, policy


def write(folder, rows):
    path = folder / "profile.csv"
    path.write_text("\n".join(["stage,instruction,frequency,time,energy", *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


ROWS = [
    (stage, name, mhz, time_s * by, energy_j * by)
    for stage in (0, 1)
    for name, by in (("forward", 1), ("backward", 2))
    for mhz, time_s, energy_j in ((1400, 1.0, 300.0), (1000, 1.5, 240.0))
]


def planned(profile):
    graph = build_graph(Schedule(2, 2, p2p="ideal"))
    return Problem(graph, build_tables(graph, profile), BLOCKING_W)


def test_a_missing_stage(tmp_path):
    profile = load_profile(write(tmp_path, [row for row in ROWS if row[0] == 0]))
    with pytest.raises(
        UserError, match=r"^the profile has no forward of stage 1, chunk 0 \(it has stages 0\): add its rows or plan what it covers$"
    ):
        planned(profile)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "", "fast"])
def test_values_that_are_no_numbers(tmp_path, text):
    with pytest.raises(UserError, match=rf"profile\.csv, line 4, column time: '{text}' ") as caught:
        load_profile(write(tmp_path, [*ROWS[:2], (0, "backward", 1400, text, 600.0), *ROWS[3:]]))
    assert "\n" not in str(caught.value)


def test_rows_that_are_there_twice(tmp_path):
    once, twice = (planned(load_profile(write(tmp_path, rows))) for rows in (ROWS, ROWS + ROWS[::-1]))
    assert twice.tables.time_s.tolist() == once.tables.time_s.tolist()
    assert twice.tables.energy_j.tolist() == once.tables.energy_j.tolist()
    assert saved(twice, "operations") == pytest.approx(100 * 330 / 4200)
    with pytest.raises(
        UserError, match=r"line 10, column time: forward of stage 0 at 1400 MHz disagrees with line 2: keep one of the two$"
    ):
        load_profile(write(tmp_path, [*ROWS, (0, "forward", 1400, 1.1, 300.0)]))
